"""Ship a learned policy: recommendations for a file of contexts, and export to ONNX."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offpolicy.artifacts import Mode, export_onnx, load_policy
from offpolicy.checks import check_choice
from offpolicy.log import expanded, format_of, vowpal_log
from offpolicy.policy_files import policy_folder
from offpolicy.workflows.run import check_output_file


def run_recommend(
    directory: str | Path,
    contexts: str,
    out: str | Path,
    *,
    k: int = 10,
    mode: str = "greedy",
    seed: int | None = None,
    keep: Sequence[str] = (),
    candidates: str | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Recommend for every context of a file, into a file that is written atomically."""
    check_choice("mode", mode, ("greedy", "sample"))
    check_output_file(out, force, expanded(contexts))
    chosen: Mode = "sample" if mode == "sample" else "greedy"
    saved = load_policy(policy_folder(directory))
    with _counted("recommending") as count:
        given: dict[str, Any] = {"mode": chosen, "seed": seed, "keep": keep, "candidates": candidates}
        rows = saved.recommend_to_file(_source(contexts), out, k, report=count, **given)
    return {"contexts": rows, "k": min(k, saved.n_actions), "mode": mode, "out": str(out)}


def run_export(
    directory: str | Path,
    onnx: str | Path,
    *,
    check: str | None = None,
    k: int = 10,
    candidates: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Write a policy as ONNX; with contexts to check on, only if it agrees with the library there."""
    check_output_file(onnx, force, [] if check is None else expanded(check))
    saved = load_policy(policy_folder(directory))
    parity = export_onnx(saved, onnx, k=k, contexts=None if check is None else _source(check), candidates=candidates)
    found: dict[str, Any] = {"onnx": str(onnx), "actions": saved.n_actions, "k": min(k, saved.n_actions)}
    if parity is not None:
        found |= {
            "checked_contexts": parity.rows,
            "same_lists": parity.same_lists,
            "largest_difference": parity.largest_difference,
        }
    return found


def _source(contexts: str) -> Any:
    """Contexts as the policy reads them; Vowpal Wabbit's files, which have no columns, as a frame."""
    paths = expanded(contexts)
    form = format_of(paths[0])
    if form != "dsjson" and form != "cb":
        return contexts
    return vowpal_log(paths, form).frame


@contextmanager
def _counted(title: str) -> Iterator[Callable[[int], None] | None]:
    """A count of what is done on standard error, where a person is watching."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status(title) as status:
        yield lambda done: status.update(f"{title}: {done:,} contexts")
