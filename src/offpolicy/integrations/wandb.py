"""Weights & Biases: an evaluation as a summary, its report as a page, and the policy as an artifact."""

import tempfile
from pathlib import Path
from typing import Any

from offpolicy.artifacts import load_policy
from offpolicy.errors import MissingExtraError, ParameterError
from offpolicy.integrations.tracking import flat_metrics, words, write_files
from offpolicy.results import Evaluation


def log_to_wandb(evaluation: Evaluation, policy: str | Path | None = None, *, run: Any = None, name: str = "") -> None:
    """Log an evaluation into a run of Weights & Biases, the current one unless another is given.

    Metrics and verdicts go into the run's summary, the report is a page of the run, results and report an artifact of
    type "evaluation", and the folder of a saved policy one of type "model". `name` begins the artifacts' names.
    """
    try:
        import wandb
    except ImportError:
        raise MissingExtraError("log_to_wandb needs wandb. Run: pip install 'offpolicy[wandb]'") from None
    run = wandb.run if run is None else run
    if run is None:
        raise ParameterError("No run of Weights & Biases is going on. Call wandb.init() first, or give run.")
    run.summary.update(flat_metrics(evaluation) | words(evaluation))
    start = f"{name}-" if name else f"{run.id}-"
    with tempfile.TemporaryDirectory() as folder:
        found = wandb.Artifact(f"{start}evaluation", type="evaluation")
        files = write_files(evaluation, folder)
        for file in files:
            found.add_file(str(file))
        run.log_artifact(found)
        run.log({"report": wandb.Html(files[1].read_text(encoding="utf-8"), inject=False)})
    if policy is not None:
        load_policy(policy)  # nothing is logged that cannot be loaded
        model = wandb.Artifact(f"{start}policy", type="model")
        model.add_dir(str(Path(policy).expanduser()))
        run.log_artifact(model)
