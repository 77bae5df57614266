"""How near the exact softmax head comes to the machine's sgemm rate, and how far it leaves plain autograd behind.

Run: python benchmarks/softmax_head.py [--json] [--repeats N]

One step is value and gradients of Σ c_n log π(a_n|x_n), one row a context, at 512 contexts, 30,938 actions, d = 64.
Three matrix products of 2·contexts·actions·d operations each count as its work (logits, gradient on states, gradient
on weights). The rate is that of a square single-precision product, and everything alternates in one run.
"""

from collections.abc import Callable
from statistics import median

import torch

from figures import Figure, arguments, seconds_in_turns
from offpolicy.models.softmax import weighted_log_likelihood
from offpolicy.threads import set_threads

CONTEXTS, ACTIONS, D = 512, 30_938, 64
SQUARE = 2048
THREADS = 2
WARM_UPS = 2
LIMITS = {"softmax_head.sgemm_share": 0.45, "softmax_head.autograd_speedup": 2.5}


def steps() -> dict[str, Callable[[], object]]:
    """The fused step, the same step by autograd, and the square product."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(CONTEXTS, D, generator=generator).requires_grad_()
    weights = (0.1 * torch.randn(ACTIONS, D, generator=generator)).requires_grad_()
    bias = (0.1 * torch.randn(ACTIONS, generator=generator)).requires_grad_()
    row_context = torch.arange(CONTEXTS)
    row_action = torch.randint(ACTIONS, (CONTEXTS,), generator=generator)
    coefficients = torch.rand(CONTEXTS, generator=generator)
    left, right = (torch.randn(SQUARE, SQUARE, generator=generator) for _ in range(2))
    product = torch.empty(SQUARE, SQUARE)

    def fused() -> tuple[torch.Tensor, ...]:
        value = weighted_log_likelihood(states, weights, bias, row_context, row_action, coefficients)
        return torch.autograd.grad(value, [states, weights, bias])

    def autograd() -> tuple[torch.Tensor, ...]:
        log_prob = torch.log_softmax(torch.addmm(bias, states, weights.t()), 1)
        value = (coefficients * log_prob.gather(1, row_action.unsqueeze(1)).squeeze(1)).sum()
        return torch.autograd.grad(value, [states, weights, bias])

    for ours, theirs in zip(fused(), autograd(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    return {"fused": fused, "autograd": autograd, "sgemm": lambda: torch.mm(left, right, out=product)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    set_threads(THREADS)
    seconds = seconds_in_turns(steps(), options.repeats, WARM_UPS)
    typical = {name: median(values) for name, values in seconds.items()}
    rate = 2 * SQUARE**3 / typical["sgemm"]
    work = 3 * 2 * CONTEXTS * ACTIONS * D
    measured = {
        "softmax_head.sgemm_share": work / typical["fused"] / rate,
        "softmax_head.autograd_speedup": typical["autograd"] / typical["fused"],
    }
    for name, value in measured.items():
        Figure(name, value, LIMITS[name], "at least").show(options.json)
    if not options.json:
        print(f"medians: {', '.join(f'{name} {1e3 * value:.1f} ms' for name, value in typical.items())}")
        print(f"sgemm rate: {rate / 1e9:.0f} Gflop/s with {THREADS} threads")


if __name__ == "__main__":
    main()
