"""What a piece of work has freed does not stay with the process."""

import sys
from pathlib import Path

import numpy as np
import pytest

from offpolicy.memory import give_back


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="the resident size is read from /proc")
def test_freed_memory_goes_back() -> None:
    big = np.ones(3_000_000)  # freed, it raises the size up to which glibc keeps what is freed to 24 MB
    del big
    held = [np.ones(1 << 17) for _ in range(200)]  # 200 MB, one in two of which stays
    del held[::2]
    before = resident()
    give_back()
    assert before - resident() > 50e6
    assert all(one[0] == 1 for one in held)
