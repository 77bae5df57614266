"""Guardrails: rewards that a policy must not make worse by more than a limit."""

import re
from dataclasses import dataclass

from offpolicy.errors import ParameterError

LIMITED = re.compile(r"^(?P<what>.+?)\s*(?P<sign><=|>=)\s*(?P<limit>[-+]?(?:\d+\.?\d*|\.\d+))\s*(?P<percent>%?)\s*$")
DEFAULT = 0.02
"""By how much a guardrail may get worse unless it says so, relative to logging."""
COSTS = re.compile(r"return|refund|cancel|complain|cost|churn|unsub|bounce|latency|error|spam|abuse|hide|skip", re.I)
"""Names of what is better the lower it is."""


@dataclass(frozen=True)
class Guardrail:
    """A reward that must not get worse by more than a limit."""

    what: str
    """A column, or [NAME=]EXPRESSION."""
    lower_is_better: bool
    limit: float
    """How much worse is still accepted, at least 0."""
    relative: bool
    """Whether the limit is a share of the logging policy's value."""
    inferred: str = ""
    """What was taken from the name alone, in words."""

    @classmethod
    def parse(cls, text: str) -> "Guardrail":
        """`WHAT<=+2%` (it may rise by at most 2 %), `WHAT>=-0.01` (it may fall by at most 0.01), or WHAT alone."""
        found = LIMITED.match(text)
        if found is None and re.search("[<>]", text):
            raise ParameterError(
                f"The guardrail {text!r} cannot be read. Write it as returns<=+2% (may rise by at most 2 %) or "
                "margin>=-2% (may fall by at most 2 %); without % the limit is a difference."
            )
        if found is None:
            lower = bool(COSTS.search(_name(text)))
            better = "lower" if lower else "higher"
            other = f"{text}{'>=-' if lower else '<=+'}2%"
            said = f"{_name(text)}: {better} is better, at most 2 % worse (by its name; else write {other!r})"
            return cls(text, lower, DEFAULT, True, said)
        lower, size = found["sign"] == "<=", float(found["limit"])
        if size < 0 if lower else size > 0:
            raise ParameterError(
                f"The guardrail {text!r} asks for an improvement. A limit is how much worse is accepted: at least 0 "
                "after <=, at most 0 after >=."
            )
        percent = bool(found["percent"])
        return cls(found["what"], lower, abs(size) / (100 if percent else 1), percent)

    @property
    def name(self) -> str:
        """What results call it."""
        return _name(self.what)

    @property
    def text(self) -> str:
        """The limit in words."""
        return f"{100 * self.limit:g} %" if self.relative else f"{self.limit:g}"

    def margin(self, logging: float) -> float:
        """The accepted loss, on the user's scale, given the logging policy's value."""
        return self.limit * abs(logging) if self.relative else self.limit


def _name(what: str) -> str:
    return what.partition("=")[0].strip()
