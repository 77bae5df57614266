import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from offpolicy.policies import drawn_actions


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 5))
def test_a_draw_is_the_first_action_whose_cumulative_probability_exceeds_the_uniform_number(
    seed: int, actions: int, contexts: int
) -> None:
    random = np.random.default_rng(seed)
    prob = random.dirichlet(np.full(actions, 0.3), contexts)
    row, uniform = random.integers(0, contexts, 20), random.random(20)
    drawn = drawn_actions(torch.from_numpy(prob).log(), torch.from_numpy(row), torch.from_numpy(uniform))
    for place, action in enumerate(drawn.tolist()):
        below = np.cumsum(prob[row[place]])
        reached = [a for a in range(actions) if below[a] > uniform[place] * below[-1]]
        assert action == reached[0]
        assert prob[row[place], action] > 0


def test_many_rows_of_few_contexts_follow_the_probabilities() -> None:
    prob = torch.tensor([[0.7, 0.0, 0.3], [0.1, 0.9, 0.0]], dtype=torch.float64)
    row = torch.arange(200_000) % 2
    uniform = torch.rand(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn = drawn_actions(prob.log(), row, uniform)
    for context in (0, 1):
        share = torch.bincount(drawn[row == context], minlength=3).double() / 100_000
        assert torch.allclose(share, prob[context], atol=0.006)
        assert float(share[prob[context] == 0].sum()) == 0
