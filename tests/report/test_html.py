"""The report: whole, self-contained, escaped, honest about what is missing, and clear about damaged files."""

import copy
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpolicy.drawing import Axis, Strip, numbers, round_ticks
from offpolicy.errors import OffPolicyError, ParameterError
from offpolicy.report.html import render_report, write_report
from offpolicy.results import USER_MODELS
from report_results import HOSTILE, policy, results

MINIMAL = {"format": "offpolicy-results", "version": 2, "kind": "evaluate"}
OPTIONAL = ("run", "log", "evaluation", "weights", "frequency", "propensity_models", "learning", "risky_actions")
VOID = {"meta", "link", "br", "line", "rect", "circle", "path"}


class Outline(HTMLParser):
    """Every element with its attributes, and whether all that were opened were closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_small_and_asks_for_nothing(tmp_path: Path) -> None:
    out = write_report(results(), tmp_path / "report.html")
    assert out.stat().st_size < 1_000_000
    page = out.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    outline = Outline(page)
    assert outline.open == []
    for tag, attributes in outline.elements:
        for name in ("src", "href", "xlink:href", "action", "srcset", "poster"):
            assert not re.match(r"(?!data:,)", attributes.get(name) or "data:,"), (tag, name)
        assert "style" not in attributes  # the content security policy would refuse it
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"url\((?!#hatch\))|@import", page)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_every_section_shows_its_numbers() -> None:
    page = render_report(results())
    for words in (
        "“uips” does better than the logging policy",
        "0.385 to 0.497",
        "+0.134 (+43 %)",
        "&gt; 99 %",
        "wrong by a factor of 1.30",
        "Weights before and after",
        "effective sample size",
        "Calibration of the estimated propensities",
        "Uncertainty U of β̂ by action frequency",
        "How wrong may the propensities be?",
        "Other models of the logging policy",
        "held out value",
        "Top risky actions",
        "Covariate balance",
        "Data card",
        "250,000",
        "--method ce --method uips --out runs/home-page",
        "3.11.9",
        "4 March 2025, 09:30 UTC",
        "2 min 11 s",
    ):
        assert words in page, words
    assert "not in the results" not in page
    assert page.count('class="chart"') == 3 * 3 + 3 + 2
    assert page.count("data-tip=") > 200


def test_a_page_about_slates_says_what_each_number_assumes_of_users() -> None:
    plain = results()
    for one in plain["evaluation"]["policies"].values():
        one["assumes"] = "cascade"
        for estimate, users in zip(one["estimates"], ("any", "cascade", "independent", "additive", ""), strict=True):
            estimate["assumes"] = users
    page = render_report(plain)
    assert "per position of a slate" in page
    assert "The estimate assumes users go from top to bottom: what stands below changes nothing above." in page
    rows = {users: f"<small>assumes {words}</small>" for users, words in USER_MODELS.items()}
    assert {users: page.count(row) for users, row in rows.items()} == dict.fromkeys(USER_MODELS, 3)
    assert "assumes users" not in render_report(results())
    assert not any(row in render_report(results()) for row in rows.values())


@pytest.mark.parametrize(
    ("answer", "difference", "words", "tone"),
    [
        ("answerable", 0.13, "does better than the logging policy", "good"),
        ("answerable", -0.13, "No candidate beats the logging policy", "good"),
        ("answerable", 0.01, "No clear difference between", "good"),
        ("answerable on part", 0.13, "does better than the logging policy where the log can tell", "fair"),
        ("run an experiment", 0.13, "This log cannot tell whether", "bad"),
    ],
)
def test_the_verdict_is_said_in_words(answer: str, difference: float, words: str, tone: str) -> None:
    plain = results()
    plain["evaluation"]["policies"] = {"uips": policy("uips", 0.4473, answer)}
    plain["evaluation"]["comparisons"][1] |= {"low": difference - 0.02, "high": difference + 0.02}
    page = render_report(plain)
    assert words in re.sub(r"\s+", " ", page)
    assert f'class="hero {tone}"' in page
    assert plain["evaluation"]["policies"]["uips"]["preflight"]["verdict"]["advice"] in page


@pytest.mark.parametrize("missing", OPTIONAL)
@pytest.mark.parametrize("how", ["absent", "null", "empty"])
def test_a_missing_part_is_left_out_with_a_sentence(missing: str, how: str) -> None:
    plain = results()
    empty: Any = [] if isinstance(plain[missing], list) else {}
    plain |= {"absent": {}, "null": {missing: None}, "empty": {missing: empty}}[how]
    if how == "absent":
        del plain[missing]
    page = render_report(plain)
    assert Outline(page).open == []
    sentence = {"learning": "Nothing was learned in this run", "evaluation": "No policy was evaluated in this run"}
    assert re.search(sentence.get(missing, r'class="absent">[^<]*not in the results'), page)


def test_nothing_but_a_header_is_still_a_page() -> None:
    page = render_report(MINIMAL)
    assert Outline(page).open == []
    assert "No policy was evaluated" in page
    assert page.count('class="absent"') >= 6


def _everywhere(value: Any, text: str) -> Any:
    """Every string that is not the format's own replaced, keys too."""
    if isinstance(value, dict):
        own = {"uips", "greedy", "popularity", "ce", "user", "hour", "age"}
        return {
            text + k if k in own else k: v if k in ("format", "kind", "answer", "finding") else _everywhere(v, text)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [_everywhere(inside, text) for inside in value]
    return text if isinstance(value, str) else value


@pytest.mark.parametrize(
    "text", [HOSTILE, "</script><img src=x onerror=alert(1)>", '" onload="x', "{{ 7*7 }}", "a\u2028b\0"]
)
def test_every_string_stays_text(text: str) -> None:
    page = render_report(_everywhere(results(), text))
    outline = Outline(page)
    assert outline.open == []
    assert sum(tag == "script" for tag, _ in outline.elements) == 2
    assert not any(tag in ("img", "b") and attributes for tag, attributes in outline.elements)
    assert not any(name.startswith("on") for _, attributes in outline.elements for name in attributes)
    found = re.search(r'<script type="application/json" id="results">(.*?)</script>', page, re.S)
    assert found
    assert json.loads(found[1])["run"]["command"] == text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "does not hold JSON"),
        ('{"format": "offpolicy-results", "ver', "does not hold JSON"),
        ("[" * 100_000, "does not hold JSON"),
        ("[1, 2]", "is not a results file"),
        ('{"format": "other", "version": 1}', "is not a results file"),
        ('{"format": "offpolicy-results", "version": 3, "kind": "learn"}', "has version '3'"),
        ('{"format": "offpolicy-results", "version": 2, "kind": "sing"}', "damaged at kind"),
        (
            '{"format": "offpolicy-results", "version": 2, "kind": "learn", "propensity_models": 3}',
            "damaged at propensity_models",
        ),
        ("\ud800", "does not hold JSON"),
    ],
)
def test_a_damaged_file_is_named_with_a_remedy(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "results.json"
    file.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ParameterError, match=re.escape(words)) as error:
        write_report(file, tmp_path / "report.html")
    assert str(file) in str(error.value)
    assert "--out" in str(error.value)
    assert not (tmp_path / "report.html").exists()


def test_a_file_a_folder_and_their_content_give_the_same_page(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(results()), encoding="utf-8")
    sources: tuple[Any, ...] = (tmp_path, tmp_path / "results.json", results())
    pages = [write_report(source, tmp_path / f"{i}.html").read_bytes() for i, source in enumerate(sources)]
    assert pages[0] == pages[1]
    assert pages[1] == pages[2]
    with pytest.raises(ParameterError, match="cannot be read"):
        write_report(tmp_path / "nowhere", tmp_path / "x.html")


def _places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, v in inside for place in _places(v, (*here, key)))]


PLACES = _places(results())[1:]
ODD = st.sampled_from(
    [None, [], {}, "", "x", True, -1, 0, 0.0, 1e308, -1e308, float("inf"), float("nan"), 10**400, [None], {"a": [1]}]
)


@given(st.lists(st.tuples(st.sampled_from(PLACES), ODD), min_size=1, max_size=3))
def test_any_damage_is_either_drawn_or_refused(damage: list[tuple[tuple[Any, ...], Any]]) -> None:
    plain = copy.deepcopy(results())
    for place, odd in damage:
        inside: Any = plain
        try:
            for step in place[:-1]:
                inside = inside[step]
            inside[place[-1]] = odd
        except (TypeError, KeyError, IndexError):
            continue
    try:
        page = render_report(plain)
    except OffPolicyError:
        return
    outline = Outline(page)
    assert outline.open == []
    drawn = {"x", "y", "cx", "cy", "d", "x1", "x2", "y1", "y2", "width", "height"}
    for tag, attributes in outline.elements:
        for name in drawn & attributes.keys():
            assert not re.search(r"nan|inf|e\+", attributes[name] or ""), (tag, name, attributes[name])


def test_huge_results_stay_under_the_limit() -> None:
    plain = results()
    plain["evaluation"]["policies"] = {f"policy {i}": policy(f"policy {i}", 0.4) for i in range(120)}
    plain["risky_actions"] *= 2_000
    plain["learning"] = {f"m{i}": [{"epoch": e, "loss": 1 / (e + 1)} for e in range(3_000)] for i in range(12)}
    plain["run"]["config"] = {"x" * 1_000: "y" * 1_000_000}
    page = render_report(plain)
    assert len(page.encode()) < 6_000_000
    assert "108 more policies" in page


def test_the_report_does_not_load_torch(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(results()), encoding="utf-8")
    code = (
        "import sys; from offpolicy.report.html import write_report; write_report(sys.argv[1], sys.argv[2]); "
        "print([m for m in ('torch', 'numpy', 'scipy', 'plotly', 'polars') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(tmp_path / "report.html")]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "[]"


def test_a_real_evaluation_is_drawn() -> None:
    from offpolicy.datasets.synthetic import LinearSoftmaxWorld
    from offpolicy.evaluation import evaluate

    world = LinearSoftmaxWorld.draw(0, n_actions=6, dimensions=3, temperature=1.5)
    log = world.log(0, n_contexts=400).without_propensities()
    found = evaluate(log, {"target": world.target_policy(1.0)}, "popularity", estimators=("snips",))
    page = render_report(MINIMAL | {"evaluation": found.to_json(), "log": log.summary()})
    places = numbers.decimals(min(found["target"].interval.high - found["target"].interval.low, 0.1) / 2)
    assert f"{found['target'].value:.{places}f}"[:4] in page
    assert found["target"].preflight.verdict.advice in page
    assert page.count('class="chart"') == 3


def test_numbers_are_written_for_people() -> None:
    assert [numbers.plain(v) for v in (0, 1234567, 0.01234, -2.5, 3e-7, 1e12, 999.96, None, float("nan"))] == [
        "0", "1,234,567", "0.0123", "−2.5", "3×10⁻⁷", "1×10¹²", "1,000", "–", "–",
    ]  # fmt: skip
    assert [numbers.percent(v) for v in (0, 0.123, 0.0123, 0.00123, 1e-6, None)] == [
        "0 %", "12 %", "1.2 %", "0.12 %", "< 0.01 %", "–",
    ]  # fmt: skip
    assert [numbers.chance(v) for v in (1.0, 0.93, 0.0, None)] == ["> 99 %", "93 %", "< 1 %", "–"]
    assert numbers.fixed(-0.0001, 2) == "0.00"
    assert [numbers.factor(v, 10.0) for v in (1.0, 1.3016, float("inf"), 12.0)] == [
        "at once", "1.30 ×", "beyond 10 ×", "12 ×",
    ]  # fmt: skip
    assert [numbers.duration(v) for v in (3.21, 42, 131.4, 7300)] == ["3.2 s", "42 s", "2 min 11 s", "2 h 1 min"]
    assert numbers.moment("soon") == "soon"
    assert len(numbers.label("x" * 500)) == numbers.LONGEST


def test_marks_stand_where_their_values_are() -> None:
    axis = Axis(10.0, 20.0, 100.0, 300.0)
    assert [axis.at(v) for v in (10, 15, 20, 99)] == [100, 200, 300, 300]
    assert [v for v, _ in round_ticks(0.27, 0.51)] == pytest.approx([0.3, 0.35, 0.4, 0.45, 0.5])
    drawn = Strip(Axis(0.0, 1.0, 0.0, 100.0)).draw("tip", 0.5, (0.2, 0.8), 0.1)
    outer = re.search(r'class="outer" x="([\d.]+)" y="11" width="([\d.]+)"', drawn)
    inner = re.search(r'class="inner" x="([\d.]+)" y="11" width="([\d.]+)"', drawn)
    assert outer
    assert inner
    assert [float(v) for v in outer.groups()] == [20, 60]
    assert [float(v) for v in inner.groups()] == [40, 20]


def test_a_rival_with_a_higher_but_less_certain_value_is_named() -> None:
    plain = results()
    assert "has a higher estimate" not in render_report(plain)
    rival = plain["evaluation"]["policies"]["greedy"]
    rival["value"] = plain["evaluation"]["policies"]["uips"]["value"] + 0.05
    rival["interval"] |= {"low": 0.01, "high": 0.99}
    assert "“greedy” has a higher estimate" in render_report(plain)


def test_notes_of_the_run_are_shown_and_an_evaluation_has_no_learning_curves() -> None:
    plain = results()
    plain["run"]["notes"] = ["reward: click (by its name)", "<b>bold</b>"]
    page = render_report(plain)
    assert "reward: click (by its name)" in page
    assert "<b>bold</b>" not in page
    assert 'id="learning"' not in render_report(plain | {"kind": "evaluate", "learning": {}})


def test_a_refused_comparison_shows_no_chance_and_a_choice_among_several_is_said() -> None:
    found = results()
    evaluation = found["evaluation"]
    evaluation["best_bound"] = 0.3579
    page = render_report(found)
    assert "chance that" in page
    assert "It was chosen among 3 for the highest lower confidence bound, which is 0.358 once choosing" in page
    for one in evaluation["comparisons"]:
        one |= {"refused": True, "probability_of_improvement": None, "p_value": None, "adjusted_p_value": None}
    page = render_report(found)
    assert "chance that" not in page
    assert "&gt; 99 %" not in page


def test_the_title_speaks_of_the_best_by_the_interval_that_holds_for_all_candidates() -> None:
    found = results()
    assert "does better than the logging policy" in render_report(found)
    for one in found["evaluation"]["comparisons"]:
        one |= {"joint_low": one["low"] - 0.2, "joint_high": one["high"] + 0.2}
    assert "No clear difference between" in render_report(found)
