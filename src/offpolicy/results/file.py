"""`results.json`: the schema on disk, written atomically, parsed once."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from offpolicy.errors import ParameterError
from offpolicy.json_writer import write_json
from offpolicy.results.schema import FORMAT, VERSION, Results

RESULTS = "results.json"
REMEDY = "Run `offpolicy learn` or `offpolicy evaluate` with --out again to write a fresh one."


def write_results(results: Results, folder: str | Path) -> Path:
    """Write `results.json` into a folder, which is made where it is missing."""
    path = Path(folder).expanduser() / RESULTS
    write_json(path, results.to_json(), "results")
    return path


def read_results(path: Path) -> Any:
    """The JSON in a results file, or in the `results.json` of a folder; not yet parsed."""
    file = path / RESULTS if path.is_dir() else path
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError(f"{file} cannot be read: {error.strerror or error}. {REMEDY}") from error
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"{file} is damaged: it does not hold JSON ({error}). {REMEDY}") from error


def parse_results(content: Any, where: str) -> Results:
    """Typed results; `where` names the file in messages."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ParameterError(f"{where} is not a results file: its format is not {FORMAT!r}. {REMEDY}")
    if content.get("version") != VERSION:
        raise ParameterError(
            f"{where} has version {str(content.get('version'))[:40]!r} of the results format, but this release reads "
            f"version {VERSION}. {REMEDY} A file of a newer release needs that release."
        )
    try:
        return Results.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"])[:200]
        raise ParameterError(f"{where} is damaged at {place}: {first['msg']}. {REMEDY}") from error
