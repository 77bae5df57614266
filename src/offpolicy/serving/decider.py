"""`Decider`: an action for a request, drawn from a policy, with the exact probability of the draw.

The draw is the inverse of the cumulative distribution at u, a keyed hash (blake2b) of the request's id under the salt
and the policy's digest. The same request therefore gets the same action from the same policy on any machine, any draw
can be computed again from its record, and draws of different policies on the same requests are independent.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic_core import to_json

from offpolicy.checks import Range, check_choice, check_number
from offpolicy.serving.encoding import Floats, KnownIds, Offer
from offpolicy.serving.policy import ServedPolicy, load_policy

Id: TypeAlias = int | str | bool | None
Mode: TypeAlias = Literal["explore", "greedy", "shadow"]
Source: TypeAlias = Literal["policy", "baseline", "override", "none"]
MODES: tuple[Mode, ...] = ("explore", "greedy", "shadow")
IDS = (str, int, np.integer)  # booleans are integers
SCHEME = 1
"""Version of how a request's id becomes a draw; recorded with every decision."""


@dataclass(frozen=True)
class Request:
    """What a decision is asked about."""

    request_id: str
    context: Mapping[str, Any] = field(default_factory=dict)
    candidates: Sequence[Id] | None = None
    """The actions on offer; None: all that the policy knows."""
    k: int = 1
    baseline: Id = None
    """What is shown in mode shadow."""
    baseline_probability: float | None = None
    override: Id = None
    """What the business shows whatever the policy says."""
    deferred: bool = False
    """Whether the decision counts only once it is activated."""


@dataclass(frozen=True)
class Decision:
    """What was decided, and all that is needed to know why and to draw it again."""

    request: Request
    actions: tuple[Id, ...]
    """What is shown, in order; empty where there was nothing to show."""
    probabilities: tuple[float, ...]
    """Of each action, given those before it; empty where unknown (a baseline without probability)."""
    policy_actions: tuple[Id, ...]
    """What the policy drew."""
    policy_probability: float | None
    """π(a|x) of the first of these, without the exploration floor."""
    policy: str
    mode: Mode
    source: Source
    explored: bool
    """Whether the policy's draw was not its most probable action."""
    epsilon: float
    candidates_digest: str
    notes: tuple[str, ...]

    @property
    def action(self) -> Id:
        """The first action shown; None where there was nothing to show."""
        return self.actions[0] if self.actions else None

    @property
    def probability(self) -> float | None:
        """The exact probability with which the first action was chosen; 1 if it was not drawn."""
        return self.probabilities[0] if self.probabilities else None

    @property
    def deterministic(self) -> bool:
        """Whether no chance was involved."""
        return self.source == "override" or (self.mode == "greedy" and self.source == "policy")


class Decider:
    """Decides requests by a saved policy, in this process and without torch."""

    def __init__(
        self, policy: ServedPolicy, *, mode: Mode = "explore", epsilon: float = 0.0, salt: str = "", keep: float = 1.0
    ) -> None:
        """Serve a policy; `epsilon` shared over its candidates is the least probability of each, `salt` keys the draws.

        `keep` is the share of decisions worth recording, chosen by a hash of the request's id.
        """
        check_choice("mode", mode, MODES)
        check_number("epsilon", epsilon, Range(0.0, 1.0))
        check_number("keep", keep, Range(0.0, 1.0, include_low=False))
        self.policy, self.mode, self.epsilon, self.salt, self.keep = policy, mode, float(epsilon), salt, float(keep)
        self._known = KnownIds(policy.actions)
        self._key = hashlib.blake2b(f"{salt}\0{policy.digest}".encode(), digest_size=32).digest()
        self._keep_key = hashlib.blake2b(salt.encode(), digest_size=32).digest()
        offered = np.isfinite(policy.scores({}, None, []))
        self._whole = None if offered.all() else Offer(np.flatnonzero(offered))
        self._excluded = frozenset(np.flatnonzero(~offered).tolist())
        self.catalogue: list[Id] = [a for a, usable in zip(policy.actions, offered, strict=True) if usable]
        self.catalogue_digest = digest_of(self.catalogue)

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> "Decider":
        """The decider of a run, a policy's folder or an exported `.onnx` file."""
        return cls(load_policy(path), **options)

    def decide(
        self,
        request_id: str,
        context: Mapping[str, Any] | None = None,
        candidates: Sequence[Id] | None = None,
        k: int = 1,
        **more: Any,
    ) -> Decision:
        """Decide one request; `more` are the other fields of a `Request`. Never raises for what a request holds."""
        return self.decision(Request(request_id, context or {}, candidates, k, **more))

    def decision(self, request: Request) -> Decision:
        """Decide a request."""
        notes: list[str] = []
        offered, prob, policy_prob, digest = self._offer(request, notes)
        drawn, chances = self._draw(request, prob) if len(prob) else ([], [])
        actions = tuple(offered[i] for i in drawn)
        best = int(prob.argmax()) if len(prob) else -1
        shown, probabilities, source = self._shown(request, actions, tuple(chances), notes)
        return Decision(
            request=request,
            actions=shown,
            probabilities=probabilities,
            policy_actions=actions,
            policy_probability=float(policy_prob[drawn[0]]) if drawn else None,
            policy=self.policy.digest,
            mode=self.mode,
            source=source,
            explored=bool(drawn) and drawn[0] != best,
            epsilon=self.epsilon,
            candidates_digest=digest,
            notes=tuple(notes),
        )

    def kept(self, request_id: str) -> bool:
        """Whether the decision belongs to the share that is recorded; every server with this salt says the same."""
        return self.keep >= 1.0 or uniform(self._keep_key, request_id, "keep") < self.keep

    def _offer(self, request: Request, notes: list[str]) -> tuple[Sequence[Id], Floats, Floats, str]:
        """The actions on offer, their probabilities with and without the floor, and the digest of the list."""
        unusable: list[str] = []
        if request.candidates is None:
            scores = self.policy.scores(request.context, self._whole, unusable)
            offered: Sequence[Id] = self.catalogue
            prob, digest = softmax(scores), self.catalogue_digest
        else:
            offered, codes, places = self._candidates(request.candidates, notes)
            prob, digest = np.zeros(len(codes)), digest_of(request.candidates)
            known = codes >= 0
            if known.any():
                known_places = [place for place, one in zip(places, known, strict=True) if one]
                offer = Offer(codes[known], known_places, len(request.candidates))
                prob[known] = softmax(self.policy.scores(request.context, offer, unusable))
            elif len(codes):
                prob[:] = 1.0 / len(codes)
                notes.append("no candidate is known: drawn uniformly")
            else:
                notes.append("no candidates")
        if unusable:
            notes.append(f"missing or unknown: {', '.join(dict.fromkeys(unusable))}")
        return offered, with_floor(prob, self.epsilon) if self.epsilon and len(prob) else prob, prob, digest

    def _candidates(
        self, candidates: Sequence[Id], notes: list[str]
    ) -> tuple[list[Id], npt.NDArray[np.int64], list[int]]:
        """The candidates once each, without those the policy excludes; their codes (−1: unknown to it), and places."""
        listed = [place for place, action in enumerate(candidates) if isinstance(action, IDS)]
        usable = [candidates[place] for place in listed]
        if len(usable) < len(candidates):
            notes.append(f"{len(candidates) - len(usable)} candidates are no ids")
        pairs = zip(usable, self._known.codes(usable), listed, strict=True)
        once: dict[tuple[type, Id], tuple[Id, int, int]] = {}
        for action, code, place in pairs:
            if code not in self._excluded:
                once.setdefault((type(action), action), (action, code, place))
        codes = np.array([code for _, code, _ in once.values()], dtype=np.int64)
        unknown = int((codes < 0).sum())
        if unknown:
            notes.append(f"{unknown} of {len(once)} candidates unknown")
        return [action for action, _, _ in once.values()], codes, [place for _, _, place in once.values()]

    def _draw(self, request: Request, prob: Floats) -> tuple[list[int], list[float]]:
        """Positions of k different actions, and the probability of each given those before it."""
        k = 1 if request.k == 1 else max(1, min(int(request.k), int((prob > 0).sum())))
        if self.mode == "greedy":
            return np.argsort(-prob, kind="stable")[:k].tolist(), [1.0] * k
        drawn: list[int] = []
        chances: list[float] = []
        left = prob
        for position in range(k):
            cumulative = left.cumsum()
            total = float(cumulative[-1])
            u = uniform(self._key, request.request_id, f"draw {position}")
            place = int(cumulative.searchsorted(u * total, side="right"))
            if place >= len(left) or left[place] <= 0:  # u·total was rounded up to total
                place = int(np.flatnonzero(left)[-1])
            drawn.append(place)
            chances.append(min(float(left[place]) / total, 1.0))
            if position + 1 < k:
                left = left.copy()
                left[place] = 0.0
        return drawn, chances

    def _shown(
        self, request: Request, actions: tuple[Id, ...], chances: tuple[float, ...], notes: list[str]
    ) -> tuple[tuple[Id, ...], tuple[float, ...], Source]:
        if request.override is not None:
            return (request.override,), (1.0,), "override"
        if self.mode == "shadow":
            if request.baseline is None:
                notes.append("shadow without a baseline")
                return (), (), "none"
            known = request.baseline_probability
            usable = known is not None and 0 < known <= 1
            return (request.baseline,), (float(known),) if known is not None and usable else (), "baseline"
        return actions, chances, "policy" if actions else "none"


def softmax(scores: Floats) -> Floats:
    """exp(scores) over their sum."""
    prob: Floats = scores - scores.max()
    np.exp(prob, out=prob)
    prob /= prob.sum()
    return prob


def with_floor(prob: Floats, epsilon: float) -> Floats:
    """The nearest distribution (in relative entropy) with no probability below ε/n: the others shrink by one factor."""
    least = epsilon / len(prob)
    low = prob < least
    if not low.any():
        return prob
    while True:
        left = float(prob[~low].sum())
        if left <= 0 or low.all():
            return np.full(len(prob), 1.0 / len(prob))
        raised = prob * ((1.0 - least * int(low.sum())) / left)
        more = (raised < least) & ~low
        if not more.any():
            raised[low] = least
            return np.asarray(raised)
        low |= more


def uniform(key: bytes, request_id: str, purpose: str) -> float:
    """A number in [0, 1) that depends on nothing but its arguments: 53 bits of a keyed hash."""
    text = request_id.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8, key=key, person=purpose.encode()[:16]).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def digest_of(candidates: Sequence[Id]) -> str:
    """A digest of a list of candidates, in its order."""
    return hashlib.blake2b(to_json(list(candidates), serialize_unknown=True), digest_size=12).hexdigest()
