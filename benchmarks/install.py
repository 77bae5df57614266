"""The wheel in a clean environment of every Python that is here: does it run, how large, how long to import?

Run: python benchmarks/install.py [--json] [--keep] [--python 3.12 ...] WHEEL [SDIST]
`make packages` builds them first.

One environment at a time, under build/packages, removed when it has been looked at. From a plain index PyTorch comes
with CUDA on Linux (5 GB an environment); PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu takes it without.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import figures

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "packages"
VERSIONS = ("3.11", "3.12", "3.13")
NEEDED_GB = 8
IMPORTS, LIMIT_SECONDS = 9, 0.3
TORCH = ("torch", "torchgen", "functorch", "nvidia", "triton", "cuda", "nvfuser")
"""What PyTorch brings, by the first part of a folder's name."""

IMPORTED = "import time; s = time.perf_counter(); import offpolicy; print(time.perf_counter() - s)"
WITHOUT_TORCH = """
import sys, offpolicy, offpolicy.cli, offpolicy.serving
assert offpolicy.serving.Decider and "torch" not in sys.modules, "torch was loaded"
"""
WITH_TORCH = """
import offpolicy, torch
assert all(getattr(offpolicy, name) is not None for name in offpolicy.__all__)
print(torch.__version__)
"""
SIZES = """
import importlib.metadata as m, json, pathlib
found = {}
for one in m.distributions():
    files = [pathlib.Path(one.locate_file(f)) for f in one.files or ()]
    found[one.metadata["Name"]] = sum(f.stat().st_size for f in set(files) if f.is_file())
print(json.dumps(found))
"""


def python(version: str) -> str | None:
    """An interpreter of that version: on the path, this one, or one of pyenv's."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    here = [Path(sys.executable)] if sys.version.startswith(f"{version}.") else []
    for found in [shutil.which(f"python{version}"), *map(str, [*here, *kept])]:
        if found and not subprocess.run([found, "-c", "import venv"], capture_output=True, check=False).returncode:
            return found
    return None


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Standard output of a command that has to succeed, away from this repository's sources."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=plain | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def of_torch(name: str) -> bool:
    """Whether a distribution is PyTorch or came with it for the GPU."""
    return name.lower().replace("_", "-").split("-")[0] in TORCH


def look(version: str, interpreter: str, files: list[Path], keep: bool) -> dict[str, object]:
    """Install, measure and run in an environment of its own."""
    home = FOLDER / version
    shutil.rmtree(home, ignore_errors=True)
    run(interpreter, "-m", "venv", home)
    own = home / "bin" / "python"
    install: list[str | Path] = [own, "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    start = time.perf_counter()
    run(*install, "--constraint", ROOT / "constraints.txt", files[0])
    took = time.perf_counter() - start
    sizes: Mapping[str, int] = json.loads(run(own, "-c", SIZES, cwd=home))
    for sdist in files[1:]:
        run(*install, "--force-reinstall", "--no-deps", sdist)
    run(own, "-W", "error", "-c", WITHOUT_TORCH, cwd=home)
    imports = [float(run(own, "-c", IMPORTED, cwd=home)) for _ in range(IMPORTS)]
    torch = run(own, "-W", "error", "-c", WITH_TORCH, cwd=home).strip()
    run(own.with_name("offpolicy"), "--help", cwd=home)
    start = time.perf_counter()
    run(own.with_name("offpolicy"), "demo", "--quiet", cwd=home, PYTHONWARNINGS="error")
    assert (home / "offpolicy-demo" / "evaluated" / "report.html").stat().st_size > 50_000
    demo = time.perf_counter() - start
    if not keep:
        shutil.rmtree(home)
    return {
        "import": statistics.median(imports),
        "demo": demo,
        "install": took,
        "torch": torch,
        "sizes": {name: round(size / 1e6, 1) for name, size in sorted(sizes.items(), key=lambda pair: -pair[1])},
    }


def show(version: str, found: dict[str, object], as_json: bool) -> None:
    """The figures of one Python."""
    sizes = found["sizes"]
    assert isinstance(sizes, dict)
    facts = {"python": version, "torch": found["torch"]}
    core = sum(size for name, size in sizes.items() if not of_torch(name) and name not in ("pip", "setuptools"))
    with_gpu = sum(size for name, size in sizes.items() if of_torch(name))
    parts = {name: size for name, size in sizes.items() if size >= 1 and not of_torch(name)}
    for figure in (
        figures.Figure("install.import_seconds", float(str(found["import"])), LIMIT_SECONDS, facts=facts),
        figures.Figure("install.demo_seconds", float(str(found["demo"])), facts=facts),
        figures.Figure("install.core_mb", core, facts=facts | {"parts": parts}, note=f"without torch, {version}"),
        figures.Figure("install.torch_mb", with_gpu, facts=facts, note=str(found["torch"])),
        figures.Figure("install.own_mb", sizes["offpolicy"], facts=facts, note="the package itself"),
    ):
        figure.show(as_json)


def main() -> None:
    parser = figures.arguments(__doc__)
    parser.add_argument("--python", action="append", choices=VERSIONS, help="repeatable; all that are here")
    parser.add_argument("--keep", action="store_true", help="leave the environments under build/packages")
    parser.add_argument("files", nargs="+", type=Path)
    chosen = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for version in chosen.python or VERSIONS:
        interpreter = python(version)
        if interpreter is None:
            print(f"Python {version} is not here.", file=sys.stderr)
        elif shutil.disk_usage(FOLDER).free < NEEDED_GB * 1e9:
            print(f"Python {version}: less than {NEEDED_GB} GB of disk are free.", file=sys.stderr)
        else:
            files = sorted((path.resolve() for path in chosen.files), key=lambda path: path.suffix != ".whl")
            show(version, look(version, interpreter, files, chosen.keep), chosen.json)


if __name__ == "__main__":
    main()
