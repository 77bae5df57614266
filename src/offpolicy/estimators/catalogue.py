"""The registry as a Markdown page: `python -m offpolicy.estimators.catalogue > docs/estimators.md`."""

from offpolicy.estimators import ESTIMATORS, INPUTS, OFFICIAL, Estimator
from offpolicy.estimators.registry import REFERENCES

HEADER = """# Estimators

Generated from the registry by `make docs`; do not edit.

Every estimator is one formula,

    V = mean q̂(x, π) + Σ w·(r − q̂(x, a)) / Σ z,

with its own weight w. The divisor sums z = 1 ("count"), z = w ("weights", self-normalised) or a row scale h of its own.
Estimators with a reward model use q̂; for the others q̂ = 0. The learner uses the same weights under stop-gradient.
ρ = π(a|x)/β̂(a|x) is the importance ratio, U the uncertainty of log β̂, s = γU.

Where the paper's own form of a method is degenerate or wrong, the bare name is the corrected form and `_paper` the
printed one; `_official` is what the released code computes, its guards as switches.
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _row(row: Estimator) -> str:
    hyper = ", ".join(
        f"`{p.name}` = {p.default:g} in {p.allowed}" if p.allowed else f"`{p.name}` = {p.default}"
        for p in row.hyper.values()
    )
    inputs = ", ".join([*row.inputs, *(f"{name} (optional)" for name in row.optional_inputs)])
    divisor = {"count": "count", "weight": "weights"}.get(str(row.normaliser), "Σh")
    model = "yes" if row.uses_reward_model else ""
    names = f"`{row.name}`" + "".join(f", `{alias}`" for alias in row.aliases)
    cells = (names, row.formula, divisor, model, inputs, hyper, f"[{row.reference}]")
    return "| " + " | ".join(map(_cell, cells)) + " |"


def catalogue() -> str:
    """The whole page."""
    lines = [HEADER, "| name | weight | divisor | q̂ | inputs | hyper-parameters | source |", "|" + "---|" * 7]
    lines += [_row(row) for row in ESTIMATORS.values()]
    lines += ["", "## Inputs", "", "| input | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(meaning)} |" for name, meaning in INPUTS.items()]
    lines += ["", "## Profiles of the released code", ""]
    lines += [
        "| folder | " + " | ".join(vars(OFFICIAL["wiki"])) + " |",
        "|" + "---|" * (1 + len(vars(OFFICIAL["wiki"]))),
    ]
    lines += [f"| {name} | " + " | ".join(map(str, vars(p).values())) + " |" for name, p in OFFICIAL.items()]
    used = {row.reference for row in ESTIMATORS.values()}
    lines += ["", "## Sources", ""] + [f"- [{key}] {text}" for key, text in REFERENCES.items() if key in used]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(catalogue(), end="")
