"""The exceptions users see: one family, each message one paragraph that says what is wrong and what to do."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple


def printable(text: str, kept: str = "\u00a0") -> str:
    """The text with control characters made visible, so that no name in it steers a terminal or breaks a line."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in kept else "�" for c in text)


class OffPolicyError(Exception):
    """Anything the user can fix; commands print its message without a traceback."""


class Fix(NamedTuple):
    """An option that would fix a problem, its value as the command line takes it, and what it would do."""

    option: str
    value: str
    effect: str

    @property
    def typed(self) -> str:
        """As typed on the command line."""
        return f"--{self.option.replace('_', '-')} {shlex.quote(self.value)}"

    @property
    def python(self) -> str:
        """As an argument of `read_log`."""
        name, equals, value = self.value.rpartition("=")
        if equals:
            return f"{'kinds' if self.option == 'kind' else self.option}={{{name!r}: {value!r}}}"
        if self.option == "reward_range":
            return f"reward_range=({self.value.replace(',', ', ')})"
        return f"{self.option}={value!r}" if self.option == "missing" else f"{self.option}=[{value!r}]"


class LogError(OffPolicyError):
    """A log, action table or context file that cannot be read or breaks a rule of the data.

    `fix` is the option that would let the log be read, where there is one. Several problems of one log are one error,
    whose `problems` they are.
    """

    def __init__(self, message: str, fix: Fix | None = None, problems: Sequence["LogError"] = ()) -> None:
        """A message of what is wrong; the fix is added to it."""
        self.message, self.fix, self.problems = message, fix, tuple(problems)
        super().__init__(self._said())

    @classmethod
    def joined(cls, where: str, problems: Sequence["LogError"]) -> "LogError":
        """One error of all problems of a log; a single one as it is."""
        if len(problems) == 1:
            return problems[0]
        own = [cls(one.message.removeprefix(f"{where}: "), one.fix) for one in problems]
        return cls(f"{where} has {len(own)} problems.", None, own)

    @property
    def fixes(self) -> tuple[Fix, ...] | None:
        """Options that fix everything, once each; None where something is left that no option fixes."""
        all_fixes = [one.fix for one in self.problems or (self,)]
        if any(one is None for one in all_fixes):
            return None
        return tuple({(one.option, one.value): one for one in all_fixes if one is not None}.values())

    def typed(self) -> str:
        """The message with fixes as they are typed on the command line."""
        return self._said(typed=True)

    def _said(self, typed: bool = False) -> str:
        said = self.message
        if self.fix is not None:
            said += f" Give {self.fix.typed if typed else self.fix.python} {self.fix.effect}."
        lines = [f"  {number}. {one._said(typed)}" for number, one in enumerate(self.problems, 1)]
        if typed and self.problems and self.fixes:
            lines.append(printable(f"All at once: {' '.join(one.typed for one in self.fixes)}"))
        return "\n".join([printable(said), *lines])


class ParameterError(OffPolicyError, ValueError):
    """An argument, hyper-parameter or configuration value outside what is allowed."""


class DivergedError(OffPolicyError):
    """A training whose loss or gradient is no longer a finite number."""


class ArtifactError(OffPolicyError):
    """A saved or exported policy that cannot be written, read or trusted."""


class MissingExtraError(OffPolicyError, ImportError):
    """A feature whose optional dependency is not installed."""
