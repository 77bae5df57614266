"""The reward model: what it learns, that no row imputes itself, and sums against brute force."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.errors import ParameterError
from offpolicy.evaluation.inputs import weight_inputs
from offpolicy.log import LoggedData
from offpolicy.models.scorers import linear_scorer
from offpolicy.policies import UniformPolicy
from offpolicy.rewards.cross_fitted import RewardFitConfig, _fit, fit_reward_model
from offpolicy.rewards.logistic import ActionRows

WORLD = LinearSoftmaxWorld.draw(0, n_actions=6, dimensions=3)
LOG = WORLD.log(0, 500, 4)
QUICK = RewardFitConfig(epochs=30, learning_rate=0.05)
FITTED = fit_reward_model(LOG, config=QUICK)


def test_it_learns_the_rewards() -> None:
    contexts = WORLD.contexts(5, 1000)
    truth, found = WORLD.rewards(contexts), FITTED.rewards(contexts).double()
    assert found.shape == (1000, 6)
    assert float((found - truth).abs().mean()) < 0.07
    entropy = -(truth * truth.log() + (1 - truth) * (1 - truth).log()).mean()
    assert FITTED.log_loss < float(entropy) + 0.1


def test_one_action_is_logistic_regression() -> None:
    """Against an independent optimiser on the rows of a log with a single action and ridge."""
    log = LOG.take(LOG.action == 2)
    config = RewardFitConfig(epochs=400, learning_rate=0.01, ridge=5.0, batch_contexts=10_000)
    model = _fit(linear_scorer, log, config, 400)[0]
    x = linear_scorer(log).states(log.contexts).double().numpy()[log.context_index]
    offset = np.log(log.reward.mean() / (1 - log.reward.mean()))

    def loss(theta: np.ndarray) -> float:
        score = offset + x @ theta[:-1] + theta[-1]
        cross_entropy = (np.logaddexp(0, score) - log.reward * score).mean()
        return float(cross_entropy + 5.0 / (2 * log.n_rows) * (theta**2).sum())

    theta = minimize(loss, np.zeros(x.shape[1] + 1)).x
    expected = 1 / (1 + np.exp(-(offset + x @ theta[:-1] + theta[-1])))
    np.testing.assert_allclose(model.row_rewards(log).numpy(), expected, atol=2e-3)


def test_every_action_is_a_penalised_regression_beside_what_all_share() -> None:
    """Against an independent optimiser, one action at a time, from a start that plain Newton steps overshoot."""
    rows = ActionRows.of(linear_scorer(LOG), LOG)
    shared = rows.shared()
    found = rows.own(shared, 0.5)
    offset = shared.scores(rows)
    for action in range(3):
        mine = (rows.action == action).numpy()
        parts = (rows.features[rows.context], rows.reward, rows.events, offset)
        x, r, n, o = (values.numpy()[mine] for values in parts)

        def loss(
            theta: np.ndarray, x: np.ndarray = x, r: np.ndarray = r, n: np.ndarray = n, o: np.ndarray = o
        ) -> float:
            score = o + x @ theta
            return float(n @ (np.logaddexp(0, score) - r * score) + 0.25 * (theta**2).sum())

        np.testing.assert_allclose(found[action].numpy(), minimize(loss, np.zeros(x.shape[1])).x, atol=1e-3)
    again = rows.own(shared, 0.5, torch.full_like(found, 3.0))
    torch.testing.assert_close(again, found, rtol=0, atol=1e-3)


def test_what_the_logger_prefers_is_learned_from_either_way() -> None:
    """The shared part follows the logger's preferences where they pay, and opposes them where they do not."""
    signs = []
    for alignment in (0.9, -0.9):
        world = LinearSoftmaxWorld.draw(3, n_actions=20, dimensions=3, alignment=alignment)
        rows = ActionRows.of(linear_scorer(world.log(0, 2000)), world.log(0, 2000))
        slopes = rows.shared().prior[:, :-1]
        slopes = slopes - slopes.mean(0)
        signs.append(float((slopes * world.omega).sum() / (slopes.norm() * world.omega.norm())))
    assert min(signs) > 0.5


def _repeated(log: LoggedData, times: np.ndarray) -> LoggedData:
    """Each row so many times."""
    row = np.repeat(np.arange(log.n_rows), times)
    return LoggedData.from_arrays(
        log.contexts,
        log.action[row],
        log.reward[row],
        context_index=log.context_index[row],
        actions=log.n_actions,
    )


def test_what_is_shown_again_and_again_is_no_new_evidence() -> None:
    """Where a context and an action always have the same reward, repeating rows changes nothing."""
    once = WORLD.log(1, 400, 1)
    often = _repeated(once, np.random.default_rng(0).integers(1, 20, once.n_rows))
    contexts = WORLD.contexts(5, 200)
    expected = fit_reward_model(once).rewards(contexts)
    np.testing.assert_allclose(fit_reward_model(often).rewards(contexts).numpy(), expected.numpy(), atol=1e-5)


def test_rows_with_rewards_of_their_own_are_evidence_each() -> None:
    """Where rewards are drawn row by row, hardly anything is alike, and a pair counts nearly as its rows do."""
    log = WORLD.log(2, 100, 60)
    rows = ActionRows.of(linear_scorer(log), log)
    shared = rows.shared()
    assert float(rows.rows.max()) > 10
    assert rows.alike(shared.scores(rows, rows.own(shared, 1.0))) < 0.02


def test_how_alike_rows_are_is_a_correlation_over_all_pairs_of_rows() -> None:
    """Against a loop over rows, for rewards that are no 0 or 1; each fold has its own pairs."""
    random = np.random.default_rng(0)
    base = WORLD.log(3, 20, 12)
    reward = np.clip(0.3 * base.reward + 0.7 * random.random(base.n_rows), 0, 1)
    log = LoggedData.from_arrays(
        base.contexts, base.action, reward, context_index=base.context_index, actions=base.n_actions
    )
    row_fold = random.integers(2, size=log.n_rows)
    rows = ActionRows.of(linear_scorer(log), log, row_fold)
    score = random.standard_normal((log.n_contexts, log.n_actions))
    found = rows.alike(torch.from_numpy(score)[rows.context, rows.action])
    left = log.reward - 1 / (1 + np.exp(-score[log.context_index, log.action]))
    products = squares = 0.0
    for i in range(log.n_rows):
        same = (log.context_index == log.context_index[i]) & (log.action == log.action[i]) & (row_fold == row_fold[i])
        same[i] = False
        products += left[i] * left[same].sum()
        squares += same.sum() * left[i] ** 2
    assert found == pytest.approx(max(products / squares, 0.0), rel=1e-5)
    assert found > 0


def test_no_row_imputes_itself() -> None:
    """Changing the rewards of one fold leaves what is imputed there as it was."""
    assert FITTED.row_fold is not None
    inside = FITTED.row_fold == 1
    changed = LoggedData.from_arrays(
        LOG.contexts,
        LOG.action,
        np.where(inside, 1 - LOG.reward, LOG.reward),
        context_index=LOG.context_index,
        actions=LOG.n_actions,
    )
    again = fit_reward_model(changed, config=RewardFitConfig(epochs=30, learning_rate=0.05, patience=30))
    patient = fit_reward_model(LOG, config=RewardFitConfig(epochs=30, learning_rate=0.05, patience=30))
    assert again.row_fold is not None
    np.testing.assert_array_equal(again.row_fold, FITTED.row_fold)
    for model in (again, patient):
        for row in np.flatnonzero(inside)[:5]:
            fold = model.folds[1]
            part = LOG.take([row])
            assert float(model.row_rewards(model.log)[row]) == pytest.approx(float(fold.row_rewards(part)[0]), rel=1e-6)
    per_context: dict[int, int] = {}
    for context, fold in zip(LOG.context_index, FITTED.row_fold, strict=True):
        assert per_context.setdefault(int(context), int(fold)) == fold


def test_rows_and_tiles_agree() -> None:
    whole = FITTED.rewards(LOG.contexts)
    np.testing.assert_allclose(
        FITTED.whole.row_rewards(LOG).numpy(), whole[LOG.context_index, LOG.action].double().numpy(), rtol=1e-5
    )
    tiles = FITTED.values(LOG.contexts)
    torch.testing.assert_close(tiles(slice(10, 30)), whole[10:30], rtol=1e-5, atol=1e-6)


def test_the_rewards_of_a_context_follow_its_rows_folds() -> None:
    share = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 2.0], [0.0, 0.0, 5.0]])
    contexts = LOG.contexts.take(slice(0, 3))
    found = FITTED.values(contexts, share)(slice(0, 3))
    each = [model.rewards(contexts) for model in FITTED.folds]
    torch.testing.assert_close(found[0], each[0][0])
    torch.testing.assert_close(found[1], (each[1][1] + each[2][1]) / 2)
    torch.testing.assert_close(found[2], each[2][2])
    torch.testing.assert_close(FITTED.values(contexts, share)(slice(1, 2))[0], found[1])


def test_the_rewards_of_all_contexts_come_from_models_that_did_not_see_them() -> None:
    found = FITTED.context_rewards
    assert found is not None
    assert FITTED.row_fold is not None
    for row in (0, 7, 1999):
        x = int(LOG.context_index[row])
        expected = FITTED.folds[FITTED.row_fold[row]].rewards(LOG.contexts.take(slice(x, x + 1)))[0]
        torch.testing.assert_close(found[x], expected, rtol=1e-5, atol=1e-6)
    by_row = replace(FITTED, row_fold=np.arange(LOG.n_rows) % 3)
    assert by_row.context_rewards is None
    assert replace(FITTED, row_fold=None, folds=()).context_rewards is None


def test_the_evaluator_takes_it() -> None:
    uniform = UniformPolicy(6)
    inputs = weight_inputs(("log_ratio",), LOG, uniform, uniform, reward_model=FITTED)
    mean = FITTED.rewards(LOG.contexts).double().mean(1).numpy()
    np.testing.assert_allclose(inputs["baseline"].numpy(), mean[LOG.context_index], rtol=1e-5)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_constant_rewards(reward: float) -> None:
    log = LoggedData.from_arrays(
        LOG.contexts, LOG.action, np.full(LOG.n_rows, reward), context_index=LOG.context_index, actions=6
    )
    found = fit_reward_model(log, folds=None, config=RewardFitConfig(epochs=2)).rewards(log.contexts)
    torch.testing.assert_close(found, torch.full_like(found, reward), rtol=0, atol=1e-3)


def test_towers_and_bad_names() -> None:
    towers = fit_reward_model(LOG, "two_tower", folds=None, config=RewardFitConfig(epochs=2))
    assert towers.rewards(LOG.contexts).shape == (500, 6)
    with pytest.raises(ParameterError, match="two_tower"):
        fit_reward_model(LOG, "two-tower")


def test_an_action_without_rows_is_no_better_than_the_others() -> None:
    """What all actions share serves it, and pessimism lowers it further."""
    log = LOG.take(LOG.action != 3)
    plain, careful = (
        fit_reward_model(log, folds=None, config=RewardFitConfig(pessimism=z)).rewards(log.contexts).mean(0)
        for z in (0.0, 1.0)
    )
    assert float(plain[3]) < float(log.reward.mean()) + 0.05
    assert float(careful[3]) < float(plain[3]) - 0.02
    torch.testing.assert_close(careful[:3], plain[:3], rtol=0, atol=0.03)
