"""Pages whose tables are generated: each stands between `<!-- name -->` and `<!-- end -->`."""

from collections.abc import Mapping

from offpolicy.errors import LogError


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """The page with these tables regenerated."""
    for name, table in tables.items():
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not start or not end:
            raise LogError(f"The page has no place for the table {name!r}, between <!-- {name} --> and <!-- end -->.")
        text = before + start + table + end + after
    return text
