"""What has to be true before a version is released: one line a condition, exit code 1 if any fails.

Run: make release-check
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = ["docs/estimators.md", "docs/commands.md", "docs/learning.md", "docs/reproduction.md", "docs/pictures"]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def said(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def version() -> str:
    """The version, from the one place that holds it."""
    found = re.search(r'^__version__ = "(.+)"$', text("src/offpolicy/__init__.py"), re.MULTILINE)
    assert found, "src/offpolicy/__init__.py holds no version"
    return found[1]


def one_version() -> str:
    project = tomllib.loads(text("pyproject.toml"))["project"]
    cited = re.search(r"^version: (.+)$", text("CITATION.cff"), re.MULTILINE)
    if "version" in project:
        return "pyproject.toml has a version of its own"
    return "" if cited and cited[1] == version() else f"CITATION.cff does not say {version()}"


def links() -> str:
    given = tomllib.loads(text("pyproject.toml"))["project"].get("urls")
    return "" if given else "pyproject.toml has no [project.urls]: name the repository, the site and the changelog"


def changelog() -> str:
    heads = re.findall(r"^## (.+)$", text("CHANGELOG.md"), re.MULTILINE)
    dated = re.compile(re.escape(version()) + r" \(\d{4}-\d{2}-\d{2}\)")
    if not any(dated.fullmatch(head) for head in heads):
        return f"CHANGELOG.md has no heading '## {version()} (YYYY-MM-DD)'"
    after = text("CHANGELOG.md").partition("## Unreleased")[2].partition("\n## ")[0].strip()
    return "there is something under 'Unreleased'" if after else ""


def clean() -> str:
    changed = said("git", "status", "--porcelain")
    return f"not committed: {', '.join(line[3:] for line in changed.splitlines())}" if changed else ""


def untagged() -> str:
    return f"v{version()} is tagged already" if said("git", "tag", "--list", f"v{version()}") else ""


def generated() -> str:
    subprocess.run(["make", "docs"], cwd=ROOT, check=True, capture_output=True)
    changed = said("git", "status", "--porcelain", *GENERATED)
    return f"`make docs` changes {', '.join(line[3:] for line in changed.splitlines())}" if changed else ""


def built() -> str:
    names = sorted(path.name for path in (ROOT / "dist").glob(f"offpolicy-{version()}*"))
    wanted = [f"offpolicy-{version()}-py3-none-any.whl", f"offpolicy-{version()}.tar.gz"]
    return "" if names == wanted else "dist/ does not hold wheel and sdist of this version: run `make packages`"


CONDITIONS: dict[str, Callable[[], str]] = {
    "one version everywhere": one_version,
    "project links": links,
    "changelog by version": changelog,
    "everything committed": clean,
    "no such tag yet": untagged,
    "generated pages are fresh": generated,
    "packages built": built,
}
BY_HAND = (
    "make check && make test && make slow: all pass, on a quiet machine",
    "make packages: every Python here installs the wheel and runs the demo",
    "make site: look at its start page, wide and narrow",
    "numbers in README and docs: the commands they name were run on this version",
    "git tag v{version}, push it, upload dist/, publish build/site",
)


def failures() -> Iterator[str]:
    """Print each condition; yield what is wrong."""
    for name, condition in CONDITIONS.items():
        wrong = condition()
        print(f"{'missing' if wrong else 'ok':8}{name}{': ' + wrong if wrong else ''}")
        if wrong:
            yield name


def main() -> int:
    found = list(failures())
    print("\nBy hand")
    for line in BY_HAND:
        print(f"        {line.format(version=version())}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
