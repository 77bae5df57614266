"""Facts about a log."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from offpolicy.log.candidates import Candidates

if TYPE_CHECKING:
    from offpolicy.log.log_arrays import LogArrays


def summary(log: "LogArrays") -> dict[str, Any]:
    """Plain facts about the log, ready for JSON; rewards on the user's scale."""
    counts = [np.bincount(one.context_index, minlength=one.n_contexts).astype(np.int32) for one in log.shards]
    per_context = np.concatenate(counts)
    facts = {
        "rows": log.n_rows,
        "contexts": log.n_contexts,
        "rows_per_context_median": float(np.median(per_context)),
        "actions": log.n_actions,
        "actions_never_logged": int((log.action_count == 0).sum()),
        "reward_mean": float(log.reward_to_user_scale(log.mean_reward)),
        "reward_range": list(log.reward_range),
        "reward_name": log.reward_name,
        "reward_binary": all(bool(((one.reward == 0.0) | (one.reward == 1.0)).all()) for one in log.shards),
        "propensities_recorded": log.logging_prob is not None,
        "clusters": None if log.cluster is None else int(log.cluster.max()) + 1,
        "timestamps_recorded": log.timestamp is not None,
        "context_features": {name: column.kind for name, column in log.contexts.items()},
        "action_features": {name: column.kind for name, column in (log.actions.features or {}).items()},
    }
    if log.request is not None and log.position is not None:
        positions = int(log.position.max()) + 1
        facts["slates"] = {"requests": len(np.unique(log.request)), "positions": positions}
    return facts if log.candidates is None else facts | {"candidates": _offered(log, log.candidates)}


def _offered(log: "LogArrays", candidates: Candidates) -> dict[str, Any]:
    """Facts about the candidate sets."""
    sizes = candidates.sizes[log.context_index]
    features: Mapping[str, Any] = candidates.features or {}
    return {
        "sets": len(np.unique(candidates.hashes)),
        "least": int(sizes.min()),
        "median": float(np.median(sizes)),
        "most": int(sizes.max()),
        "rows_without_choice": int((sizes == 1).sum()),
        "features": {name: column.kind for name, column in features.items()},
    }
