"""The release check finds what is missing, and the version stands in one place."""

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

import offpolicy

ROOT = Path(__file__).parents[1]
FILES = ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", "src/offpolicy/__init__.py")


@pytest.fixture
def check(tmp_path: Path) -> ModuleType:
    """The check, looking at a copy of the files it reads."""
    spec = importlib.util.spec_from_file_location("release_check", ROOT / ".ci" / "release_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    vars(module)["ROOT"] = tmp_path
    return module


def test_the_version_is_the_same_everywhere(check: ModuleType, tmp_path: Path) -> None:
    assert check.version() == offpolicy.__version__
    assert check.one_version() == ""
    cited = tmp_path / "CITATION.cff"
    cited.write_text(cited.read_text(encoding="utf-8").replace(offpolicy.__version__, "9.9.9"), encoding="utf-8")
    assert "CITATION.cff" in check.one_version()


def test_a_version_without_a_dated_heading_is_not_released(check: ModuleType, tmp_path: Path) -> None:
    changes = tmp_path / "CHANGELOG.md"
    heading = f"## {offpolicy.__version__} (2026-12-01)"
    changes.write_text(f"# Changelog\n\n{heading}\n\n- All of it.\n", encoding="utf-8")
    assert check.changelog() == ""
    changes.write_text("# Changelog\n\n## Unreleased\n\n- All of it.\n", encoding="utf-8")
    assert heading[:-13] in check.changelog()
    changes.write_text(f"# Changelog\n\n## Unreleased\n\n- More.\n\n{heading}\n\n- All.\n", encoding="utf-8")
    assert "Unreleased" in check.changelog()


def test_links_are_asked_for(check: ModuleType, tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\nname = "x"\n', encoding="utf-8")
    assert "urls" in check.links()
    project.write_text('[project]\nname = "x"\n[project.urls]\nSource = "https://x.y"\n', encoding="utf-8")
    assert check.links() == ""
