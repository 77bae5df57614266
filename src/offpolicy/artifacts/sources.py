"""What a policy is named by, on the command line and in Python: a folder, a file, a function, or a column."""

import importlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offpolicy.artifacts.folder import load_policy
from offpolicy.artifacts.onnx_policy import OnnxPolicy
from offpolicy.errors import ArtifactError, ParameterError
from offpolicy.log import SUFFIXES
from offpolicy.policy_files import policy_folder

COLUMN = "column:"
"""Says that what follows is a column, whatever else is called like it."""
FUNCTION = re.compile(r"^(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)$")
PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth")
FORMS = (
    "the folder of a saved policy or of a run, a file of lists or of (key, action, probability) rows, an ONNX file, a "
    "Python function or classifier as module:name, a column with π(a|x) of the logged actions, or uniform"
)


@dataclass(frozen=True)
class TableSource:
    """A file of lists, or of (key, action, probability) rows."""

    path: str


def policy_source(what: str | Path) -> Any:
    """What a name stands for: a policy, a `TableSource`, a function or a classifier; a column's name stays a name."""
    text = str(what)
    if text == "uniform":
        return text
    if text.startswith(COLUMN):
        return text.removeprefix(COLUMN)
    path = Path(text).expanduser()
    if path.is_dir():
        return load_policy(policy_folder(path))
    if path.suffix.lower() in PICKLES:
        raise ParameterError(
            f"{path} is a pickle, which may run any code when it is read, so it is not. Name the object as "
            "module:name, or convert it to ONNX."
        )
    if path.suffix.lower() == ".onnx":
        return OnnxPolicy.load(path)
    if path.is_file() or _looks_like_a_table(text):
        return TableSource(str(path))
    function = FUNCTION.match(text)
    if function is not None:
        return _imported(function["module"], function["name"])
    if "/" in text or os.sep in text:
        raise ArtifactError(f"{path} does not exist. A policy is {FORMS}.")
    return text


def _looks_like_a_table(text: str) -> bool:
    return any(text.lower().endswith(suffix) for suffix in SUFFIXES)


def _imported(module: str, name: str) -> Any:
    """An object of the user's own code, which is looked for in the working directory too."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ParameterError(f"The policy {module}:{name} cannot be loaded: {error}. A policy is {FORMS}.") from None
    return found
