"""`offpolicy convert`: a log of any format as a log of Vowpal Wabbit."""

from pathlib import Path
from typing import Any

from offpolicy.checks import check_choice
from offpolicy.log import expanded, is_store, to_cb_adf, to_dsjson
from offpolicy.workflows.log_spec import LogSpec, without_duplicates
from offpolicy.workflows.prepare import resolve
from offpolicy.workflows.roles import kind_notes
from offpolicy.workflows.run import check_output_file

WRITERS = {"dsjson": to_dsjson, "cb_adf": to_cb_adf}


def run_convert(spec: LogSpec, out: str | Path, form: str, *, force: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Write the log; facts about it, and what was inferred."""
    check_choice("to", form, WRITERS)
    check_output_file(out, force, [] if is_store(spec.source) else expanded(spec.source))
    spec = resolve(spec)
    log, _, dropped = without_duplicates(spec, spec.read())
    WRITERS[form](log, out)
    sizes = None if log.candidates is None else float(log.candidates.sizes[log.context_index].mean())
    facts = {"rows": log.n_rows, "actions": log.n_actions, "candidates_a_row": sizes, "out": str(out), "format": form}
    return facts, [*spec.notes, *dropped, *kind_notes(spec, log)]
