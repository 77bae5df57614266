"""Memory that was freed and that the C library keeps: given back where much was used for a moment."""

import ctypes
import sys


def trim() -> None:
    """Give freed memory back to the system, where the C library can (glibc)."""
    if sys.platform == "linux":
        give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if give_back is not None:
            give_back(0)
