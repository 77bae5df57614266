"""The registry: rows by name, with aliases, and an error that suggests the nearest spelling."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from offpolicy.errors import ParameterError

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Name -> row, in order of registration; case, dashes and aliases are understood when a row is looked up."""

    def __init__(self, kind: str, rows: Mapping[str, T] | None = None) -> None:
        """An empty registry, or one of these rows; `kind` is what messages call a row."""
        self.kind = kind
        self.rows: dict[str, T] = {}
        self.aliases: dict[str, str] = {}
        for name, row in (rows or {}).items():
            self.add(name, row)

    def add(self, name: str, row: T, aliases: Iterable[str] = ()) -> None:
        """Register a row under names that are free."""
        names = (name, *aliases)
        for each in names:
            if each in self:
                raise ValueError(f"the {self.kind} name {each!r} is taken")
        self.rows[name] = row
        self.aliases.update(dict.fromkeys(names[1:], name))

    def __getitem__(self, name: str) -> T:
        """The row of that name or alias, or KeyError."""
        if not isinstance(name, str):
            raise KeyError(name)
        plain = name.lower().replace("-", "_")
        return self.rows[self.aliases.get(plain, plain)]

    def find(self, name: str) -> T:
        """The row of that name or alias, or a ParameterError with the nearest spelling."""
        if name in self:
            return self[name]
        raise self.unknown(name)

    def unknown(self, name: object, also: Iterable[str] = ()) -> ParameterError:
        """The error for a name that neither the registry nor `also` has."""
        names = [*self.rows, *(other for other in also if other not in self.rows)]
        near = difflib.get_close_matches(str(name), [*names, *self.aliases], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return ParameterError(f"There is no {self.kind} {name!r}.{hint} Known: {', '.join(names)}.")

    def __iter__(self) -> Iterator[str]:
        """Names without aliases."""
        return iter(self.rows)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)
