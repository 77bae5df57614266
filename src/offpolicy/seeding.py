"""One seed, many independent named streams.

Each use of chance asks for its own stream by name, so adding a draw in one place never shifts the draws of another.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def _entropy(seed: int, names: tuple[str | int, ...]) -> list[int]:
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return [seed, *np.frombuffer(digest, dtype=np.uint32).tolist()]


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """The NumPy generator of the stream called `names` under `seed`."""
    return np.random.default_rng(_entropy(seed, names))


def torch_generator(seed: int, *names: str | int) -> "torch.Generator":
    """The torch generator (CPU) of the stream called `names` under `seed`."""
    import torch

    return torch.Generator().manual_seed(int(generator(seed, *names).integers(2**63 - 1)))
