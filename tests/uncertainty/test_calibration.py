"""γ: bands that cover a known β* about as often as they promise, and what each method can and cannot see."""

import itertools
import math

import numpy as np
import pytest
import torch

from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.errors import ParameterError
from offpolicy.log import EmbeddingColumn, FeatureTable, LoggedData
from offpolicy.policies import tensor
from offpolicy.propensity import FitConfig, LoggingPolicy, fit_logging_policy
from offpolicy.uncertainty import (
    FORMS,
    bootstrap_errors,
    calibrate_gamma,
    covered,
    held_out_error,
    held_out_errors,
    row_uncertainty,
)
from offpolicy.uncertainty.calibration import Method, redraw_actions
from offpolicy.uncertainty.held_out import _excess

CONFIG = FitConfig(ridge=1.0)
WORLD = LinearSoftmaxWorld.draw(3, n_actions=10, dimensions=3)
LOG = WORLD.log(3, 1_500)
FITTED = fit_logging_policy(LOG.without_propensities(), "linear", config=CONFIG)
LEVELS = (0.8, 0.9, 0.95)
WORLDS = 6


def log_error(fitted: LoggingPolicy, log: LoggedData) -> torch.Tensor:
    assert log.logging_prob is not None
    return fitted.row_log_prob - tensor(log.logging_prob).log()


def bent_log(seed: int, n: int) -> LoggedData:
    """Logits linear in x + x², which a linear model cannot express."""
    contexts = WORLD.contexts(seed, n)
    column = contexts["x"]
    assert isinstance(column, EmbeddingColumn)
    bent = FeatureTable({"x": EmbeddingColumn(column.values + 0.5 * (column.values**2 - 1))})
    probs = WORLD.logging_policy.log_probs(bent).exp()
    action = torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(seed))
    return LoggedData.from_arrays(
        contexts=contexts,
        context_index=np.arange(n),
        action=action.flatten().numpy(),
        reward=np.zeros(n),
        actions=10,
        logging_prob=probs.gather(1, action).flatten().numpy(),
    )


@pytest.mark.parametrize("folds", [None, 2])
def test_bands_cover_the_truth_as_often_as_they_promise(folds: int | None) -> None:
    """Rows of a world share the errors of its fitted weights: those are what the binomial error counts."""
    n_actions, dimensions = 5, 2
    found: dict[tuple[str, str, float], list[float]] = {}
    for seed in range(WORLDS):
        world = LinearSoftmaxWorld.draw(seed, n_actions=n_actions, dimensions=dimensions)
        log = world.log(seed, 500)
        fitted = fit_logging_policy(log.without_propensities(), "linear", config=CONFIG, folds=folds)
        errors: dict[Method, torch.Tensor] = {
            "bootstrap": bootstrap_errors(fitted, 5),
            "held_out": held_out_errors(fitted, 6),
        }
        for form in FORMS:
            u = row_uncertainty(fitted, form)
            for method, level in itertools.product(errors, LEVELS):
                band = calibrate_gamma(fitted, form, level, uncertainty=u, method=method, errors=errors[method])
                assert math.isclose(band.width, band.gamma * float(u.mean()))
                assert abs(band.coverage - level) < 0.01
                found.setdefault((form, method, level), []).append(covered(u, band.gamma, log_error(fitted, log)))
    independent = WORLDS * n_actions * (dimensions + 1)
    for (*_, level), shares in found.items():
        assert abs(np.mean(shares) - level) < 3 * math.sqrt(level * (1 - level) / independent)


def test_gamma_grows_with_the_level_and_says_how_it_was_found() -> None:
    errors = bootstrap_errors(FITTED, 4, seed=1)
    bands = [calibrate_gamma(FITTED, level=level, errors=errors) for level in (0.5, 0.8, 0.99)]
    assert bands[0].gamma < bands[1].gamma < bands[2].gamma
    assert {band.method for band in bands} == {"bootstrap"}
    assert calibrate_gamma(FITTED, errors=errors) == calibrate_gamma(FITTED, draws=4, seed=1)


def test_held_out_sees_misspecification_where_bootstrap_is_blind() -> None:
    log = bent_log(5, 4_000)
    fitted = fit_logging_policy(log.without_propensities(), "linear", config=CONFIG)
    error = held_out_error(fitted, 2)
    assert error.misspecification > 0.1
    assert 0.7 < error.scale < 1.5
    assert held_out_error(FITTED, 2).misspecification < 0.1
    u, off = row_uncertainty(fitted), log_error(fitted, log)
    blind = calibrate_gamma(fitted, level=0.9, method="bootstrap", draws=3)
    seeing = calibrate_gamma(fitted, level=0.9, method="held_out", draws=4)
    assert covered(u, blind.gamma, off) < 0.65
    assert 0.8 < covered(u, seeing.gamma, off) < 0.97


def test_binned_is_silent_on_estimation_error_and_speaks_on_gross_miscalibration() -> None:
    assert calibrate_gamma(FITTED, level=0.9, method="binned").gamma < 0.5
    world = LinearSoftmaxWorld.draw(0, n_actions=10, dimensions=30)
    overfitted = fit_logging_policy(
        world.log(0, 600).without_propensities(), "linear", config=FitConfig(ridge=1e-3), folds=2
    )
    assert calibrate_gamma(overfitted, level=0.9, method="binned").gamma > 0.1


def test_excess_has_mean_zero_for_a_perfect_model_and_ignores_directions_that_do_not_exist() -> None:
    random = torch.Generator().manual_seed(0)
    z = torch.randn(400, 3, generator=random, dtype=torch.float64)
    z = torch.cat([z, z[:, :1]], 1)  # a copy: rank 3
    p = torch.sigmoid(z[:, 0])
    information = z.T @ ((p * (1 - p)).unsqueeze(1) * z)
    found = []
    for _ in range(400):
        taken = (torch.rand(400, generator=random, dtype=torch.float64) < p).double()
        found.append(_excess(z.T @ (taken - p), information))
    assert abs(np.mean(found)) < 4 * math.sqrt(2 * 3 / 400)  # χ²₃ − 3
    assert min(found) >= -3


def test_redrawn_logs_follow_the_fitted_policy() -> None:
    log = FITTED.log
    drawn = np.stack([redraw_actions(log, FITTED, torch.Generator().manual_seed(seed)).action for seed in range(20)])
    share = np.bincount(drawn.ravel(), minlength=10) / drawn.size
    expected = FITTED.log_probs(log.contexts).exp().mean(0).numpy()
    np.testing.assert_allclose(share, expected, atol=4 * np.sqrt(0.25 / drawn.size))


def test_without_uncertainty_there_is_nothing_to_calibrate() -> None:
    for model in ("uniform", "recorded"):
        band = calibrate_gamma(fit_logging_policy(LOG, model))
        assert (band.gamma, band.width, band.coverage) == (0.0, 0.0, 1.0)


def test_logs_that_cannot_be_halved_and_models_without_features_can_be_bootstrapped() -> None:
    small = LOG.take(np.arange(200))
    popular = fit_logging_policy(small, "popularity")
    assert calibrate_gamma(popular, draws=3).gamma > 0
    with pytest.raises(ParameterError, match="bootstrap"):
        calibrate_gamma(popular, method="held_out")
    one = LoggedData.from_arrays(
        contexts=small.contexts.take(slice(0, 1)),
        context_index=np.zeros(200, int),
        action=small.action,
        reward=small.reward,
        actions=10,
    )
    fitted = fit_logging_policy(one, "linear")
    assert calibrate_gamma(fitted, draws=2).gamma > 0
    with pytest.raises(ParameterError, match="groups"):
        calibrate_gamma(fitted, method="held_out")


def test_bad_requests_are_refused() -> None:
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(ParameterError, match="level"):
            calibrate_gamma(FITTED, level=level)
    with pytest.raises(ParameterError, match="held_out"):
        calibrate_gamma(FITTED, method="heldout")  # type: ignore[arg-type]
