"""A fit of β̂ that was killed goes on where it was: each finished family is kept until all of β̂ is saved."""

from pathlib import Path

import pytest
import torch

from offpolicy.log import LoggedData, read_log
from offpolicy.nuisances import Nuisances
from offpolicy.propensity import FAMILIES, FitConfig, fit_logging_policy
from small_log import a_frame


def a_log(rows: int = 1200) -> LoggedData:
    return read_log(a_frame(rows), context=["segment", "age"], action="item", reward="click")


class KilledError(Exception):
    """Stands for the end of the process."""


def test_families_that_were_fitted_are_not_fitted_again_and_the_answer_is_the_same(tmp_path: Path) -> None:
    log = a_log()
    config = FitConfig(epochs=3, seed=0)
    whole = fit_logging_policy(log, "auto", config=config)
    kept = FitConfig(epochs=3, seed=0, keep=tmp_path / "fits")
    fits: list[str] = []
    dies_at = ["greedy_linear"]

    def counted(name: str, fit):  # type: ignore[no-untyped-def]
        def own(*given):  # type: ignore[no-untyped-def]
            if name in dies_at:
                raise KilledError
            fits.append(name)
            return fit(*given)

        return own

    for name, family in FAMILIES.items():
        object.__setattr__(family, "fit", counted(name, family.fit))
    try:
        with pytest.raises(KilledError):
            fit_logging_policy(log, "auto", config=kept)
        before = list(fits)
        assert "linear" in before
        assert len(list((tmp_path / "fits").iterdir())) == len(before)
        fits.clear()
        dies_at.clear()
        resumed = fit_logging_policy(log, "auto", config=kept)
        assert fits[0] == "greedy_linear"
    finally:
        for family in FAMILIES.values():
            vars(family).pop("fit", None)
    assert torch.equal(resumed.row_log_prob, whole.row_log_prob)
    assert [one.name for one in resumed.members] == [one.name for one in whole.members]


def test_what_was_kept_goes_when_all_is_saved(tmp_path: Path) -> None:
    known = Nuisances(a_log(300), folder=tmp_path)
    _ = known.logging_policy
    kept = tmp_path / "nuisances" / "unfinished"
    assert any(kept.iterdir())
    assert known.save(tmp_path) is not None
    assert not kept.exists()


def test_a_damaged_fit_is_fitted_again(tmp_path: Path) -> None:
    log = a_log(300)
    config = FitConfig(epochs=2, keep=tmp_path)
    first = fit_logging_policy(log, "auto", config=config)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:50])
    again = fit_logging_policy(log, "auto", config=config)
    assert torch.equal(first.row_log_prob, again.row_log_prob)
