"""The finding in plain sentences: one function behind the report's first screen and `offpolicy explain`."""

import re
import subprocess
import sys
from copy import deepcopy
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from offpolicy.cli import main
from offpolicy.errors import ParameterError
from offpolicy.json_writer import write_json
from offpolicy.report.html import render_report
from offpolicy.results import Evaluation, explain, parse_results
from report_results import evaluation, policy, results


def explained(plain: dict[str, Any], name: str | None = None) -> Any:
    found = explain(Evaluation.model_validate(plain), name)
    assert found is not None
    return found


def single(answer: str = "answerable", low: float = 0.1, high: float = 0.2, **changes: Any) -> dict[str, Any]:
    plain = evaluation()
    plain["policies"] = {"uips": policy("uips", 0.4473, answer)}
    plain["comparisons"][1] |= {"low": low, "high": high}
    return plain | {"decisions": [], "outcomes": [], "segments": []} | changes


@pytest.mark.parametrize(
    ("plain", "step"),
    [
        (single(), "The log supports shipping “uips”."),
        (single("answerable on part"), "The log supports shipping “uips” where the log can tell."),
        (single("run an experiment"), "Do not decide from this log."),
        (single(low=-0.2, high=-0.1), "Keep what runs today: “uips” would do worse."),
        (
            single(low=-0.1),
            "Keep what runs today, or test “uips” on a share of the traffic (from about 0.079 on, this log would have "
            "shown a difference).",
        ),
        (
            single(decisions=[{"policy": "uips", "holds": False, "sentence": "uips: better on click; worse on x."}]),
            "Do not ship “uips” on click alone: decide on all rewards together.",
        ),
    ],
)
def test_the_first_sentence_says_what_to_do(plain: dict[str, Any], step: str) -> None:
    said = explained(plain).parts["What to do"]
    assert said[0] == step
    assert said[1] == plain["policies"]["uips"]["preflight"]["verdict"]["advice"]


def test_the_numbers_are_those_of_the_results() -> None:
    found = explained(single(log={"rows": 250_000}))
    assert found.lead == (
        "“uips” would earn a mean click of 0.447 per decision (95 % interval 0.385 to 0.497), against 0.313 for the "
        "logging policy, which made this log: a difference of +0.134 (+43 %), with a > 99 % chance that “uips” is the "
        "better one. Over 1,000 decisions that is a total of about 447 instead of 313."
    )
    assert found.parts["How sure it is"][0] == (
        "The estimate may be off by ± 0.038 from having only 250,000 rows and by ± 0.018 because nobody recorded how "
        "likely each action was: more rows would help most."
    )


def test_recorded_propensities_are_never_called_missing() -> None:
    plain = single()
    plain["logging"]["model"] = "recorded"
    plain["policies"]["uips"]["interval"]["propensity"] = 1e-6  # views may differ by as much as rounding
    found = explained(plain)
    assert found.parts["How sure it is"] == (
        "The estimate may be off by ± 0.038 from having only so many rows; the propensities are those that the log "
        "recorded.",
    )
    assert not [one for said in found.parts.values() for one in said if "nobody recorded" in one or "assumes" in one]


def test_a_difference_that_rounds_to_nothing_is_not_shown_as_a_share() -> None:
    plain = single(low=-0.01)
    plain["comparisons"][1] |= {"difference": 2e-6, "relative": 6e-6}
    plain["policies"]["uips"]["detectable_effect"] = 2e-6
    found = explained(plain)
    assert "a difference of 0.000, with" in found.lead
    assert found.parts["What to do"][0] == "Keep what runs today, or test “uips” on a share of the traffic."


def test_segments_are_named_where_they_differ_clearly() -> None:
    plain = evaluation()
    plain["segments"] = [
        {**one, "segment": f"s{place}", "difference_low": low, "difference_high": low + 0.02, "refused": place == 7}
        for place, (one, low) in enumerate(
            zip([deepcopy(plain["segments"][0]) for _ in range(8)], [0.1] * 6 + [-0.1, -0.1], strict=True)
        )
    ]
    said = explained(plain).parts["Where it differs"]
    assert said[0] == "Clearly worse where country s6."  # the refused one is not named
    assert said[1] == "Clearly better where country s0, s1, s2, s3, s4 and 1 more."


def test_segments_are_those_of_the_first_reward() -> None:
    plain = evaluation()
    first = plain["segments"][0] | {"refused": False}
    fewer = {"reward": "returns", "segment": "fewer returns", "difference_low": -0.2, "difference_high": -0.1}
    better = {"reward": plain["reward"], "segment": "ours", "difference_low": 0.1, "difference_high": 0.2}
    older = {"column": "age", "segment": "older", "difference_low": 0.1, "difference_high": 0.2}
    plain["segments"] = [first | fewer, first | better, first | older]
    assert explained(plain).parts["Where it differs"] == ("Clearly better where country ours, age older.",)


def test_another_policy_can_be_explained() -> None:
    found = explained(evaluation(), "greedy")
    assert found.title == "This log cannot tell whether “greedy” is better: run an experiment"
    assert found.parts["What speaks against it"] == ("effective sample size is 12 clusters (50 are needed)",)
    assert "highest lower confidence bound" not in found.lead
    with pytest.raises(ParameterError, match=r"There is no policy 'x'\. Known: popularity, uips, greedy"):
        explained(evaluation(), "x")


def test_the_report_says_the_same_words() -> None:
    plain = results()
    page = re.sub(r"\s+", " ", unescape(render_report(plain)))
    parsed = parse_results(plain, "results").evaluation
    assert parsed is not None
    found = parsed.explain()
    for sentence in (found.title, found.lead, *(one for said in found.parts.values() for one in said)):
        assert re.sub(r"\s+", " ", sentence) in page, sentence


def test_the_command_reads_the_results_file_and_never_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(tmp_path / "results.json", results(), "results")
    with pytest.raises(SystemExit) as stopped:
        main(["explain", str(tmp_path)])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    found = parse_results(results(), "results").evaluation
    assert found is not None
    told = found.explain()
    for sentence in (told.title, told.lead, *told.parts["What to do"]):
        assert sentence in printed
    code = (
        "import sys; from offpolicy.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: assert 'torch' not in sys.modules and 'polars' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, "explain", str(tmp_path), "--json"], check=True, capture_output=True)


def test_a_run_without_an_evaluation_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(tmp_path / "results.json", results() | {"evaluation": None}, "results")
    with pytest.raises(SystemExit) as stopped:
        main(["explain", str(tmp_path)])
    assert stopped.value.code == 1
    assert "holds no evaluation" in capsys.readouterr().err
