"""The families of models of β̂, each a small file behind one protocol."""

from typing import Any

from offpolicy.checks import check_choice
from offpolicy.errors import ParameterError
from offpolicy.models import Normaliser
from offpolicy.propensity.families.counted import COUNTS, POPULARITY, RECORDED, UNIFORM
from offpolicy.propensity.families.exploring import GREEDY_LINEAR, NETWORK, TOWERS
from offpolicy.propensity.families.softmax import LINEAR, QUADRATIC, TWO_TOWER, Softmax
from offpolicy.propensity.families.top_k import TOP_K
from offpolicy.propensity.families.trees import TREES, Classifier
from offpolicy.propensity.model import Family

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        RECORDED,
        UNIFORM,
        POPULARITY,
        COUNTS,
        LINEAR,
        QUADRATIC,
        GREEDY_LINEAR,
        TOP_K,
        NETWORK,
        TOWERS,
        TREES,
        TWO_TOWER,
    )
}
MODELS = ("auto", *FAMILIES)
"""The names of models of β̂; `auto` is the ensemble."""


def family_of(model: Any, normaliser: Normaliser | None = None) -> Family:
    """The family a user asked for: by name, as a classifier, or as a function that makes a scorer for a log."""
    if isinstance(model, str):
        check_choice("model", model, MODELS)
        family = FAMILIES[model]
        if isinstance(family, Softmax) and normaliser is not None:
            return Softmax(family.name, family.make, normaliser)
        return family
    if hasattr(model, "predict_proba") or hasattr(model, "fit"):
        return Classifier(model)
    if not callable(model):
        raise ParameterError(
            f"model must be one of {', '.join(MODELS)}, a scikit-learn classifier, or a function that makes a scorer, "
            f"but it is {model!r}."
        )
    return Softmax(getattr(model, "__name__", "scorer"), lambda log, seed: model(log), normaliser)


__all__ = ["FAMILIES", "LINEAR", "MODELS", "QUADRATIC", "Softmax", "family_of"]
