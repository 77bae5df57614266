"""A policy as scikit-learn sees models: fit on contexts, actions and rewards, predict actions. Needs scikit-learn."""

import tempfile
from collections.abc import Mapping
from typing import Any, Self

import narwhals as nw
import numpy as np
import numpy.typing as npt

from offpolicy.artifacts import SavedPolicy, load_policy, save_policy
from offpolicy.errors import MissingExtraError
from offpolicy.learning import learn_policy
from offpolicy.log import (
    ActionTable,
    EmbeddingColumn,
    FeatureTable,
    Kind,
    LoggedData,
    RawColumns,
    Vocabulary,
    feature_table,
    read_table,
    source_names,
)
from offpolicy.propensity import fit_logging_policy

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise MissingExtraError("OffPolicyClassifier needs scikit-learn. Run: pip install 'offpolicy[sklearn]'") from None


class OffPolicyClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns which action to take from logged actions and their rewards, with scikit-learn's methods.

    `method` is one of `learn_policy`; `options` are further arguments of it, fields of `LearnerConfig` and
    hyper-parameters. Contexts are an array of numbers, or a frame whose columns may be numbers, ids or lists; `kinds`
    overrides what they are taken for, as in `read_log`.
    """

    def __init__(
        self,
        method: str = "auto",
        *,
        reward_range: tuple[float, float] = (0.0, 1.0),
        kinds: Mapping[str, Kind] | None = None,
        options: Mapping[str, Any] | None = None,
        random_state: int = 0,
    ) -> None:
        """Keep the parameters as they are; `fit` checks them."""
        self.method = method
        self.reward_range = reward_range
        self.kinds = kinds
        self.options = options
        self.random_state = random_state

    def fit(self, X: Any, y: Any, rewards: Any = None, propensities: Any = None, clusters: Any = None) -> Self:  # noqa: N803
        """Learn from contexts, the logged actions, and what each of them earned.

        Without rewards the policy imitates the logger, by multinomial logistic regression. `propensities` are the
        recorded probabilities of the actions, where there are any; `clusters` says which rows belong together.
        """
        if _is_frame(X):
            validate_data(self, X, skip_check_array=True)
            y = column_or_1d(y, warn=True)
            table = read_table(X, source_names(X))
            contexts = feature_table(RawColumns(table.series, self.kinds or {}, table.origin))
        else:
            X, y = validate_data(self, X, y, dtype=np.float32)  # noqa: N806
            contexts = FeatureTable({"x": EmbeddingColumn(X)})
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("OffPolicyClassifier needs at least two actions to choose among, but y holds 1 class.")
        imitate = rewards is None
        log = LoggedData.from_arrays(
            contexts,
            codes,
            np.ones(len(codes)) if imitate else rewards,
            actions=ActionTable(Vocabulary(range(len(self.classes_)))),
            logging_prob=propensities,
            cluster=clusters,
            reward_range=(0.0, 1.0) if imitate else self.reward_range,
        )
        learned: Any = fit_logging_policy(log, "linear", seed=self.random_state).whole.scorer if imitate else None
        if not imitate:
            learned = learn_policy(log, self.method, seed=self.random_state, **dict(self.options or {}))
        with tempfile.TemporaryDirectory() as folder:
            self.policy_: SavedPolicy = load_policy(save_policy(learned, log, f"{folder}/policy"))
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """π(·|x) of every row, columns as in `classes_`."""
        check_is_fitted(self)
        if _is_frame(X):
            validate_data(self, X, reset=False, skip_check_array=True)
            source = X
        else:
            X = validate_data(self, X, reset=False, dtype=np.float32)  # noqa: N806
            source = FeatureTable({"x": EmbeddingColumn(X)})
        parts = [self.policy_.log_probs(encoded.table).exp() for encoded, _ in self.policy_.encoded(source)]
        found: npt.NDArray[np.float64] = np.concatenate([part.double().numpy() for part in parts])
        return found

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """The most probable action of every row."""
        chosen = self.predict_proba(X).argmax(1)
        found: npt.NDArray[Any] = self.classes_[chosen]
        return found


def _is_frame(source: Any) -> bool:
    """Whether contexts come in columns with names."""
    if not isinstance(nw.from_native(source, pass_through=True), nw.DataFrame | nw.LazyFrame):
        return False
    return all(isinstance(name, str) for name in source.columns)
