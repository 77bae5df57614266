"""What the site adds to docs/: the project's own pages, the Python reference, pages to come, a live report."""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import offpolicy
from offpolicy.report import render_report

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "website" / "assets"
PROJECT = ("ARCHITECTURE", "CODE_OF_CONDUCT", "CONTRIBUTING", "CHANGELOG", "SECURITY", "CLAIMS")
"""Pages that live beside the README."""
ELSEWHERE = "By task"
"""The part of the navigation that shows pages of docs/ which it does not name."""
REFERENCE = {
    "Logs": ("read_log", "LoggedData", "prepare_log", "open_store", "from_obp", "to_obp"),
    "Propensities and their uncertainty": (
        "fit_logging_policy",
        "row_uncertainty",
        "calibrate_gamma",
        "repeat_test",
        "audit",
        "compare_propensity_models",
        "Nuisances",
    ),
    "Evaluating": ("evaluate", "weight"),
    "Learning": ("learn_policy", "LearnerConfig", "save_policy", "load_policy"),
    "Errors": ("OffPolicyError", "LogError", "ParameterError"),
}
"""The public names by what they are for; data without docstrings of their own are told in words."""
TOLD = {"ESTIMATORS", "OFFICIAL", "__version__"}


EXAMPLE = ("<!-- example report -->", "[Open the demo's report](example-report.html), as the command writes it.")
"""Where pages may show the report of the demo, and what stands there on the site."""


def reference() -> str:
    """The Python reference, from the docstrings of every public name."""
    named = {name for names in REFERENCE.values() for name in names} | TOLD
    parts = REFERENCE | {"More": tuple(sorted(set(offpolicy.__all__) - named))}
    lines = ["# Python", "", "Everything `import offpolicy` offers. `ESTIMATORS` is the registry behind"]
    lines += ["[the table of estimators](estimators.md), `OFFICIAL` the switches of the released code's guards.", ""]
    for title, names in parts.items():
        lines += [f"## {title}", ""] if names else []
        for name in names:
            lines += [f"::: {getattr(offpolicy, name).__module__}.{name}", "    options:", "      heading_level: 3", ""]
    return "\n".join(lines)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put pages that the navigation does not name yet at the end of its part, under their own titles."""
    assert config.nav, "website/mkdocs.yml has no navigation"
    parts: dict[str, list[Any]] = {name: entries for part in config.nav for name, entries in part.items()}
    entries = [entry for part in parts.values() for entry in part]
    named = {page for entry in entries for page in (entry.values() if isinstance(entry, dict) else [entry])}
    parts[ELSEWHERE] += sorted({path.name for path in (ROOT / "docs").glob("*.md")} - named)
    parts["Project"] += [
        page for name in PROJECT if _own(name).exists() and (page := f"{name.lower()}.md") not in named
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files that lie elsewhere in the repository."""
    for name in filter(lambda name: _own(name).exists(), PROJECT):
        files.append(File.generated(config, f"{name.lower()}.md", content=_own(name).read_text(encoding="utf-8")))
    files.append(File.generated(config, "api.md", content=reference()))
    demo = json.loads((ROOT / "docs" / "results" / "demo.json").read_text(encoding="utf-8"))
    files.append(File.generated(config, "example-report.html", content=render_report(demo)))
    for asset in sorted(ASSETS.iterdir()):
        files.append(File.generated(config, f"assets/{asset.name}", abs_src_path=str(asset)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to the repository's pages lead to those of the site; files of code are named, not linked."""

    def link(found: re.Match[str]) -> str:
        words, target = found["words"], found["target"].removeprefix("../").removeprefix("docs/")
        if target.removesuffix(".md") in PROJECT:
            target = target.lower()
        path, _, _ = target.partition("#")
        return f"[{words}]({target})" if not path or files.get_file_from_path(path) else words

    written = markdown.replace(*EXAMPLE)
    return re.sub(r"(?<!!)\[(?P<words>[^\]]+)\]\((?P<target>(?!http)[^)\s]+)\)", link, written)


def _own(name: str) -> Path:
    return ROOT / f"{name}.md"
