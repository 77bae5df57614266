"""One place for the threads of all numeric libraries."""

import pytest
import scipy.linalg  # noqa: F401 (loads SciPy's BLAS, which must be limited too)
import torch
from threadpoolctl import threadpool_info

from offpolicy.threads import set_threads, threads


def pools() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info()} | {torch.get_num_threads()}


def fail() -> None:
    assert pools() == {2}
    raise ZeroDivisionError


def test_all_pools_follow_within_the_block_and_return_after_it_even_after_an_error() -> None:
    set_threads(1)
    assert pools() == {1}
    with threads(2):
        assert pools() == {2}
        with threads(1):
            assert pools() == {1}
        assert pools() == {2}
    assert pools() == {1}
    with pytest.raises(ZeroDivisionError):
        threads(2)(fail)()
    assert pools() == {1}


def test_it_decorates_functions() -> None:
    set_threads(1)
    assert threads(2)(pools)() == {2}
    assert pools() == {1}
