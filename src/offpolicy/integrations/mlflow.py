"""MLflow: an evaluation, its report, and the policy as a `pyfunc` model. Needs the extra `mlflow`."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from offpolicy.artifacts import SavedPolicy, load_policy
from offpolicy.errors import MissingExtraError
from offpolicy.integrations.tracking import flat_metrics, words, write_files
from offpolicy.results import Evaluation

if TYPE_CHECKING:
    import pandas as pd

PARAMETERS: dict[str, Any] = {"k": 1, "mode": "greedy", "seed": -1}
"""What `predict` takes, as `SavedPolicy.recommend` does; a seed below 0 is none."""


class Logged(NamedTuple):
    """Where MLflow keeps it."""

    run_id: str
    model_uri: str | None
    """For `mlflow.pyfunc.load_model`; None where no policy was given."""


def log_to_mlflow(evaluation: Evaluation, policy: str | Path | None = None, *, name: str = "policy") -> Logged:
    """Log an evaluation into MLflow's active run, or into a new one: metrics, verdicts as tags, results and report.

    `policy` is the folder of a saved policy. It becomes a `pyfunc` model whose `predict` takes a frame with the log's
    context columns and returns the action for each row with its probability (`params={"k": 5}` gives five, and
    `"mode": "sample"` draws). No pickle is involved: the folder is copied as it is and loaded as `load_policy` does.
    """
    mlflow = _mlflow()
    active = mlflow.active_run()
    run = active if active is not None else mlflow.start_run()
    try:
        mlflow.log_metrics(flat_metrics(evaluation))
        mlflow.set_tags({f"offpolicy/{about}": said for about, said in words(evaluation).items()})
        with tempfile.TemporaryDirectory() as folder:
            for file in write_files(evaluation, folder):
                mlflow.log_artifact(str(file))
        uri = None if policy is None else _log_policy(mlflow, Path(policy).expanduser(), name)
    finally:
        if active is None:
            mlflow.end_run()
    return Logged(run.info.run_id, uri)


def _mlflow() -> Any:
    try:
        import mlflow
        import mlflow.pyfunc
    except ImportError:
        raise MissingExtraError("log_to_mlflow needs MLflow. Run: pip install 'offpolicy[mlflow]'") from None
    return mlflow


def _log_policy(mlflow: Any, folder: Path, name: str) -> str:
    from mlflow.models.signature import ModelSignature
    from mlflow.types.schema import DataType, ParamSchema, ParamSpec

    from offpolicy import __version__

    load_policy(folder)  # nothing is logged that cannot be loaded
    kinds = {int: DataType.long, str: DataType.string}
    params = [ParamSpec(one, kinds[type(default)], default) for one, default in PARAMETERS.items()]
    logged = mlflow.pyfunc.log_model(
        name=name,
        loader_module=__name__,
        data_path=str(folder),
        pip_requirements=[f"offpolicy=={__version__}"],
        signature=ModelSignature(params=ParamSchema(params)),
    )
    return str(logged.model_uri)


class PolicyModel:
    """A saved policy as MLflow calls it."""

    def __init__(self, policy: SavedPolicy) -> None:
        """Take a loaded policy."""
        self.policy = policy

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> "pd.DataFrame":
        """What `SavedPolicy.recommend` gives for a frame of contexts, as a pandas frame."""
        asked = PARAMETERS | (params or {})
        seed = None if asked["seed"] < 0 else asked["seed"]
        found = self.policy.recommend(model_input, asked["k"], mode=asked["mode"], seed=seed)
        return found.to_pandas()


def _load_pyfunc(path: str) -> PolicyModel:
    """What MLflow calls to load the model, with the path of the copied folder."""
    return PolicyModel(load_policy(path))
