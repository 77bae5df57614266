"""Write what Open Bandit Pipeline 0.5.7 says of a few slates, for tests/evaluation/test_slates.py to agree with.

It needs an environment of its own, because that release pins old libraries:

    python3.11 -m venv build/obp
    build/obp/bin/pip install -c constraints.txt numpy pandas scikit-learn scipy torch matplotlib seaborn tqdm pyyaml
    build/obp/bin/pip install pyieoe --no-deps
    build/obp/bin/pip install obp==0.5.7 --no-deps --ignore-requires-python
    build/obp/bin/python benchmarks/obp_slates.py > tests/evaluation/obp_slates.json
"""

import json
import sys
from typing import Any

import numpy as np
from obp.dataset import SyntheticSlateBanditDataset, linear_behavior_policy_logit, logistic_reward_function
from obp.ope import SlateCascadeDoublyRobust, SlateIndependentIPS, SlateRewardInteractionIPS, SlateStandardIPS

N, LENGTH, ACTIONS = 12, 3, 5
ARRAYS = ("slate_id", "context", "action", "position", "reward", "pscore", "pscore_cascade", "pscore_item_position")


def case(factorizable: bool) -> dict[str, Any]:
    """A log, a policy and a reward model, and the values that the estimators give."""
    data = SyntheticSlateBanditDataset(
        n_unique_action=ACTIONS,
        len_list=LENGTH,
        dim_context=2,
        reward_type="binary",
        reward_structure="cascade_additive",
        behavior_policy_function=linear_behavior_policy_logit,
        base_reward_function=logistic_reward_function,
        is_factorizable=factorizable,
        random_state=12345,
    )
    feedback = data.obtain_batch_bandit_feedback(n_rounds=N)
    random = np.random.default_rng(0)
    logits = random.normal(size=(N, ACTIONS))
    slate, place, cascade = data.obtain_pscore_given_evaluation_policy_logit(
        action=feedback["action"], evaluation_policy_logit_=logits
    )
    dist = data.calc_evaluation_policy_action_dist(action=feedback["action"], evaluation_policy_logit_=logits)
    q_hat = random.random(N * LENGTH * ACTIONS)
    common = {name: feedback[name] for name in ("slate_id", "action", "reward", "position")}
    logged = {name: feedback[name] for name in ("pscore", "pscore_cascade", "pscore_item_position")}
    target = {
        "evaluation_policy_pscore": slate,
        "evaluation_policy_pscore_item_position": place,
        "evaluation_policy_pscore_cascade": cascade,
    }
    given = {**common, **logged, **target, "q_hat": q_hat, "evaluation_policy_action_dist": dist}
    estimators = {
        "sips": SlateStandardIPS(len_list=LENGTH),
        "iips": SlateIndependentIPS(len_list=LENGTH),
        "rips": SlateRewardInteractionIPS(len_list=LENGTH),
        "cascade_dr": SlateCascadeDoublyRobust(len_list=LENGTH, n_unique_action=ACTIONS),
    }
    return {
        "feedback": {"n_rounds": N, "n_unique_action": ACTIONS} | {name: feedback[name].tolist() for name in ARRAYS},
        "logits": logits.tolist(),
        "target": {name: values.tolist() for name, values in target.items()},
        "q_hat": q_hat.tolist(),
        "action_dist": dist.tolist(),
        "values": {name: float(one.estimate_policy_value(**given)) for name, one in estimators.items()},
    }


if __name__ == "__main__":
    json.dump({"with_repetition": case(True), "without_repetition": case(False)}, sys.stdout)
    sys.stdout.write("\n")
