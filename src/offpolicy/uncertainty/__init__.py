"""How uncertain β̂(a|x) is: U in three forms, each an accumulator with `add`, `merge` and `finish`.

| form | matrix | accumulator |
|---|---|---|
| shared | one, of the last layer's features g(x, a) | `SharedMatrix` |
| per action | one per action, of the contexts it was logged in | `PerActionMatrices` |
| centred Gauss–Newton | Fisher information of the softmax: U is the standard deviation of log β̂ | `LastLayerGaussNewton`, `LinearGaussNewton`, `BlockGaussNewton` |

Shards may be merged in any order; the ridge κ enters once, at `finish`. Everything is float64, by Cholesky factors.
"""  # noqa: E501

from offpolicy.uncertainty.block_gauss_newton import BlockGaussNewton, BlockUncertainty
from offpolicy.uncertainty.calibration import METHODS, Calibration, bootstrap_errors, calibrate_gamma, covered
from offpolicy.uncertainty.factor import Normalisation, row_leave_one_out
from offpolicy.uncertainty.frequency import frequency_profile
from offpolicy.uncertainty.gauss_newton import (
    EXACT_LIMIT,
    LastLayerGaussNewton,
    LastLayerUncertainty,
    LinearGaussNewton,
    LinearUncertainty,
)
from offpolicy.uncertainty.held_out import HeldOutError, held_out_error, held_out_errors
from offpolicy.uncertainty.model import UncertaintyModel
from offpolicy.uncertainty.per_action import PerActionMatrices, PerActionUncertainty
from offpolicy.uncertainty.rows import (
    FORMS,
    Form,
    State,
    row_uncertainty,
    state_function,
    uncertainty_of,
)
from offpolicy.uncertainty.shared import SharedMatrix, SharedUncertainty

__all__ = [
    "EXACT_LIMIT",
    "FORMS",
    "METHODS",
    "BlockGaussNewton",
    "BlockUncertainty",
    "Calibration",
    "Form",
    "HeldOutError",
    "LastLayerGaussNewton",
    "LastLayerUncertainty",
    "LinearGaussNewton",
    "LinearUncertainty",
    "Normalisation",
    "PerActionMatrices",
    "PerActionUncertainty",
    "SharedMatrix",
    "SharedUncertainty",
    "State",
    "UncertaintyModel",
    "bootstrap_errors",
    "calibrate_gamma",
    "covered",
    "frequency_profile",
    "held_out_error",
    "held_out_errors",
    "row_leave_one_out",
    "row_uncertainty",
    "state_function",
    "uncertainty_of",
]
