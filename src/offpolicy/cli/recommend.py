"""`offpolicy recommend`: the best actions for a file of contexts, in the user's own ids."""

from typing import Annotated

import typer

from offpolicy.cli.options import AsJson, Config, Force


def recommend(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder of a run or of a saved policy.", show_default=False)
    ],
    contexts: Annotated[str, typer.Argument(help="File or glob of contexts, with the log's columns.")],
    out: Annotated[
        str, typer.Option("--out", help="File to write: .parquet, .csv, .tsv, .ndjson or .jsonl.", show_default=False)
    ],
    k: Annotated[int, typer.Option("--k", min=1, help="Actions for each context.")] = 10,
    mode: Annotated[
        str, typer.Option("--mode", help="greedy: the most probable actions; sample: drawn with their probabilities.")
    ] = "greedy",
    keep: Annotated[
        list[str] | None, typer.Option("--keep", help="A column of the contexts to pass through; repeatable.")
    ] = None,
    candidates: Annotated[
        str | None, typer.Option("--candidates", help="The column with the list of actions on offer in each context.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Makes the draws repeatable; without it, draws are random.")
    ] = None,
    config: Config = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Recommend actions for every context of a file; the output is written atomically.

    Each line carries the probability of its action. In mode sample, rank 1 was chosen with exactly this probability:
    store it as the propensity of the next log.
    """
    from offpolicy.cli.printing import facts, print_json
    from offpolicy.workflows import run_recommend

    recommended = run_recommend(
        directory,
        contexts,
        out,
        k=k,
        mode=mode,
        seed=seed,
        keep=tuple(keep or ()),
        candidates=candidates,
        force=force,
    )
    if as_json:
        print_json(recommended)
    else:
        facts("Recommended", recommended)
