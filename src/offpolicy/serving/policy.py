"""A saved policy as it is served: scores in NumPy from its folder, or in onnxruntime from an exported graph."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import safetensors.numpy

from offpolicy.atomic import versions
from offpolicy.errors import ArtifactError, MissingExtraError
from offpolicy.log import EVERY, source_of, with_derived
from offpolicy.policy_files import PolicyFiles, from_current_version, policy_folder, read_version
from offpolicy.serving.encoding import (
    LISTS,
    CandidateScores,
    Floats,
    Offer,
    State,
    Values,
    action_side,
    number,
    state_of,
    under,
)

KINDS = ("linear", "network", "two_tower", "logging_two_tower")
"""Kinds of scorers that run in NumPy, by themselves or as the base of one that looks at features of candidates."""
SCORER = "scorer."
OF_SETS = ("candidates", "candidates.length")
"""Inputs of a graph that chooses among candidates."""
NO_INTEGER = -(2**63)
"""What such a graph takes for an integer id that is none."""


class ServedPolicy:
    """Softmax scores of all actions for the values of one request."""

    def __init__(self, digest: str, actions: list[Any], facts: Mapping[str, Any]) -> None:
        """Join what every served policy has; `load_policy` makes one."""
        self.digest = digest
        self.actions = actions
        self.method: str | None = facts.get("method")
        self.columns: list[dict[str, str]] = facts.get("columns", [])
        self.roles: dict[str, Any] = facts.get("roles") or {}
        means: dict[str, list[float]] = facts.get("means") or {}
        zeros = [name for name in means if _is_zero(name, self.roles.get("missing") or {})]
        self.fills = means | {name: [0.0] * len(means[name]) for name in zeros}
        """What stands for a missing number, by column: the mean of the log, or 0 where the log was read so."""
        own = {column["name"] for column in self.columns}  # the others are of features of candidates
        self.means = {name: mean for name, mean in means.items() if name in own and name not in zeros}
        self._derived = [one["name"] for one in self.columns if source_of(one["name"]) != one["name"]]
        low, high = facts.get("reward_range") or (0.0, 1.0)
        self.reward_range = (float(low), float(high))

    width = 64
    """Multiplications that the score of one action takes, roughly."""

    def scores(self, values: Values, offer: Offer | None, notes: list[str]) -> Floats:
        """The scores of the actions on offer (None: all of them, without any features of candidates)."""
        raise NotImplementedError

    def with_derived(self, values: Values) -> Values:
        """The values of a request and what the policy derives from them, such as the weekday of a date."""
        missing = [name for name in self._derived if name not in values]
        if not missing:
            return values
        made = dict(values)
        for name in missing:
            try:
                source = pl.Series([values.get(source_of(name))], strict=False)
                made[name] = with_derived([name], {source_of(name): source})[name].to_list()[0]
            except Exception:  # whatever the value is, it is no date: then its parts are missing
                made[name] = None
        return made


class NumpyPolicy(ServedPolicy):
    """f(x, a) = h(x)·w_a + b_a in double precision, so that draws are the same on every machine."""

    def __init__(self, files: PolicyFiles) -> None:
        """Read the document and the weights; anything unusable is an `ArtifactError`."""
        try:
            document = json.loads(files.document)
            recipe, metadata = document["scorer"], document["metadata"]
            facts = {name: metadata.get(name) for name in ("method", "roles")}
            facts |= {"columns": document["context"], "reward_range": document["reward_range"]}
            facts["means"] = _means(recipe)
            super().__init__(files.digest, document["actions"]["ids"], facts)
            tensors = under(SCORER, safetensors.numpy.load(files.weights))
            self.added: CandidateScores | None = None
            base, own = recipe, tensors
            if recipe["kind"] == "candidates":
                base, own = recipe["base"], under("base.", tensors)
            problem = None if base["kind"] in KINDS else f"NumPy cannot run a scorer of kind {base['kind']!r}"
            if problem is None:
                _put_fills(recipe, self.fills)
                self.state: State = state_of(base, own)
                self.weights, self.bias = action_side(base, own)
                if base is not recipe:
                    self.added = CandidateScores(recipe["candidate_design"], tensors["candidate_weights"])
                self.width = self.weights.shape[1]
                self.bias[document["excluded"]] = -np.inf
                problem = _unusable(self.scores({}, None, []), self.actions)
        except Exception as error:  # a document that is not what it says fails in many ways
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            raise ArtifactError(
                f"{files.folder} cannot be served: {problem}. Save the policy again, or export it with `offpolicy "
                "export --onnx` and serve that file."
            )

    def scores(self, values: Values, offer: Offer | None, notes: list[str]) -> Floats:
        """W·h(x) + b, and what features of candidates add."""
        state = self.state(self.with_derived(values) if self._derived else values, notes)
        if offer is None:
            notes += [] if self.added is None else self.added.columns
            return self.weights @ state + self.bias
        own = self.weights[offer.codes] @ state + self.bias[offer.codes]
        return own if self.added is None else own + self.added(values, offer, notes)


class OnnxPolicy(ServedPolicy):
    """The graph that `offpolicy export --onnx` wrote."""

    def __init__(self, path: Path) -> None:
        """Open a session of one thread."""
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError("Serving an ONNX file needs the onnx extra: pip install offpolicy[onnx]") from None
        try:
            content = path.read_bytes()
            options = onnxruntime.SessionOptions()
            options.log_severity_level, options.intra_op_num_threads = 3, 1
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            facts = self._session.get_modelmeta().custom_metadata_map
            actions, columns = json.loads(facts["actions"]), json.loads(facts["context"])
            served = json.loads(facts["serving"])
        except Exception as error:  # the runtime raises kinds of its own
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ArtifactError(f"{path} cannot be served ({reason}). Export the policy again.") from None
        known = {"method": facts.get("method") or None, "columns": columns, **served}
        super().__init__(hashlib.sha256(content).hexdigest()[:32], actions, known)
        self._missing: dict[str, Any] = json.loads(facts["missing"])
        self._lengths: dict[str, str] = json.loads(facts["bag_lengths"])
        self._inputs = {one.name: one for one in self._session.get_inputs()}
        expected = {name for column in columns for name in (column["name"], self._lengths.get(column["name"]))}
        self._of_candidates = [name for name in self._inputs if name not in {*expected, *OF_SETS}]

    def scores(self, values: Values, offer: Offer | None, notes: list[str]) -> Floats:
        """log π of the graph, which is a score like any other."""
        inputs: dict[str, npt.NDArray[Any]] = {}
        values = self.with_derived(values)
        for column in self.columns:
            name, kind = column["name"], column["kind"]
            value = values.get(name)
            if kind in ("numeric", "embedding"):
                inputs[name] = self._numbers(name, kind, value, notes)
            else:
                self._ids(name, kind, value, inputs, notes)
        among = offer is not None and OF_SETS[0] in self._inputs
        if OF_SETS[0] in self._inputs:
            self._sets(values, offer, inputs, notes)
        output = "candidate_log_probabilities" if among else "log_probabilities"
        scores = self._session.run([output], inputs)[0][0].astype(np.float64)
        return np.asarray(scores if offer is None or among else scores[offer.codes])

    def _sets(self, values: Values, offer: Offer | None, inputs: dict[str, Any], notes: list[str]) -> None:
        """The candidates, by their ids, and what the graph asks of each."""
        ids, length = OF_SETS
        codes = [0] if offer is None else offer.codes.tolist()  # a stand-in: nobody asks for its score
        wanted: Any = object if "string" in self._inputs[ids].type else np.int64
        inputs[ids] = np.array([[self.actions[code] for code in codes]], dtype=wanted)
        inputs[length] = np.array([len(codes)])
        for name in self._of_candidates:
            given, kind = values.get(name), self._inputs[name].type
            fits = offer is not None and bool(offer.places) and isinstance(given, LISTS) and len(given) == offer.listed
            listed = [given[i] for i in offer.places] if fits and offer is not None and given is not None else None
            own = [None] * len(codes) if listed is None else listed
            if "double" not in kind:
                text = "string" in kind
                missing: Any = "" if text else NO_INTEGER
                fine = [isinstance(one, str if text else int) for one in own]
                usable = [one if good else missing for one, good in zip(own, fine, strict=True)]
                inputs[name] = np.array([usable], dtype=object if text else np.int64)
            else:
                numbers = np.array([[number(one) for one in own]])
                fine = np.isfinite(numbers)[0].tolist()
                inputs[name] = np.where(np.isfinite(numbers), numbers, self.fills.get(name, [0.0])[0])
            notes += [] if all(fine) else [name]

    def _numbers(self, name: str, kind: str, value: Any, notes: list[str]) -> npt.NDArray[Any]:
        mean = self.fills[name]
        try:
            given = np.array([value] if kind == "numeric" else value, dtype=np.float64)
            usable = given.shape == (len(mean),) and bool(np.isfinite(given).all()) and not isinstance(value, str)
        except (TypeError, ValueError, OverflowError):
            usable = False
        if not usable:
            notes.append(name)
            given = np.array(mean)
        return given if kind == "numeric" else given[None].astype(np.float32)

    def _ids(self, name: str, kind: str, value: Any, inputs: dict[str, Any], notes: list[str]) -> None:
        missing = self._missing[name]
        wanted: Any = str if isinstance(missing, str) else int
        listed = list(value) if isinstance(value, list | tuple) else [] if kind == "bag" else [value]
        usable = [one if isinstance(one, wanted) else missing for one in listed]
        if any(a is not b for a, b in zip(usable, listed, strict=True)) or (kind == "bag" and value is None):
            notes.append(name)
        row = np.array(usable, dtype=object if wanted is str else np.int64)
        if kind == "bag":
            inputs[name], inputs[self._lengths[name]] = row[None], np.array([len(row)])
        else:
            inputs[name] = row


def load_policy(path: str | Path) -> ServedPolicy:
    """The policy of a run, of a policy's folder or of an exported `.onnx` file."""
    target = Path(path).expanduser()
    if target.suffix == ".onnx":
        return OnnxPolicy(target)
    return NumpyPolicy(from_current_version(policy_folder(target), read_version))


def load_versions(path: str | Path) -> list[ServedPolicy]:
    """The current policy and the former versions that its folder still holds."""
    current = load_policy(path)
    found = [current]
    for folder in versions(policy_folder(path)):
        try:
            found.append(NumpyPolicy(read_version(folder)))
        except ArtifactError:
            continue
    return list({policy.digest: policy for policy in found}.values())


def _means(recipe: Any) -> dict[str, list[float]]:
    """The means of all number columns, wherever in the recipe of a scorer they stand."""
    if isinstance(recipe, list):
        return {name: mean for one in recipe for name, mean in _means(one).items()}
    if not isinstance(recipe, dict):
        return {}
    own = {recipe["name"]: recipe["mean"]} if "mean" in recipe else {}
    return own | {name: mean for one in recipe.values() for name, mean in _means(one).items()}


def _put_fills(recipe: Any, fills: Mapping[str, list[float]]) -> None:
    """Write beside each number column's mean what stands for a missing one."""
    if isinstance(recipe, dict) and "mean" in recipe:
        recipe["fill"] = fills[recipe["name"]]
    for one in recipe.values() if isinstance(recipe, dict) else recipe if isinstance(recipe, list) else ():
        _put_fills(one, fills)


def _is_zero(name: str, missing: Mapping[str, str]) -> bool:
    """Whether missing numbers of a column were filled in with 0 in the log."""
    return missing.get(name, missing.get(source_of(name), missing.get(EVERY))) in ("zero", "indicator")


def _unusable(scores: Floats, actions: list[Any]) -> str | None:
    fits = scores.shape == (len(actions),) and not np.isnan(scores).any() and np.isfinite(scores).any()
    return None if fits else "it gives no usable score for each of its actions"
