"""The registry: names, aliases, spellings and what is refused."""

from typing import Any

import pytest

from offpolicy.errors import ParameterError
from offpolicy.evaluation.intervals import INTERVALS
from offpolicy.learning import METHODS, OBJECTIVES
from offpolicy.learning.methods import find_method
from offpolicy.paper.studies import STUDIES
from offpolicy.registry import Registry


@pytest.fixture
def colours() -> Registry[int]:
    made: Registry[int] = Registry("colour", {"red": 1})
    made.add("dark_blue", 2, aliases=("navy",))
    return made


def test_rows_come_in_the_order_of_registration_and_aliases_do_not_count(colours: Registry[int]) -> None:
    assert dict(colours) == {"red": 1, "dark_blue": 2}
    assert len(colours) == 2


@pytest.mark.parametrize("name", ["dark_blue", "Dark-Blue", "NAVY", "navy"])
def test_case_dashes_and_aliases_are_understood(colours: Registry[int], name: str) -> None:
    assert name in colours
    assert colours[name] == colours.find(name) == 2


@pytest.mark.parametrize("taken", ["red", "navy", "Dark-blue"])
def test_a_taken_name_is_refused_also_as_an_alias_and_changes_nothing(colours: Registry[int], taken: str) -> None:
    with pytest.raises(ValueError, match="taken"):
        colours.add(taken, 3)
    with pytest.raises(ValueError, match="taken"):
        colours.add("green", 3, aliases=(taken,))
    assert dict(colours) == {"red": 1, "dark_blue": 2}


def test_an_unknown_name_is_answered_with_the_nearest(colours: Registry[int]) -> None:
    with pytest.raises(ParameterError, match=r"no colour 'nawy'\. Did you mean 'navy'\? Known: red, dark_blue"):
        colours.find("nawy")
    with pytest.raises(KeyError):
        colours["nawy"]
    odd: Any
    for odd in (None, 3, ["red"]):
        assert odd not in colours
        with pytest.raises(ParameterError, match="There is no colour"):
            colours.find(odd)


def test_every_table_of_names_suggests_the_nearest() -> None:
    with pytest.raises(ParameterError, match=r"no interval 'nrmal'\. Did you mean 'normal'"):
        INTERVALS.find("nrmal")
    with pytest.raises(ParameterError, match=r"no objective 'valu'\. Did you mean 'value'"):
        OBJECTIVES.find("valu")
    with pytest.raises(ParameterError, match=r"no study 'rating'\. Did you mean 'ratings'"):
        STUDIES.find("rating")
    with pytest.raises(ParameterError, match=r"no method 'uipss'\. Did you mean 'uips'"):
        find_method("uipss")
    assert find_method("BIPS-Cap") is METHODS["bips_cap"]
