import math

from hypothesis import given
from hypothesis import strategies as st

from offpolicy.accumulate import ExactSum

numbers = st.lists(st.floats(-1e12, 1e12), max_size=30)


@given(numbers, numbers)
def test_exact_sums_merge_to_the_correctly_rounded_sum(first: list[float], second: list[float]) -> None:
    left, right = ExactSum(), ExactSum()
    for number in first:
        left.add(number)
    for number in second:
        right.add(number)
    left.merge(right)
    assert left.finish() == math.fsum(first + second)
