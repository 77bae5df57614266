"""What each command does: read, estimate, write; the command line only parses and prints."""

from offpolicy.workflows.convert import run_convert
from offpolicy.workflows.demo import SHOWN, DemoResult, Propensities, run_demo
from offpolicy.workflows.doctor import run_doctor
from offpolicy.workflows.evaluate import run_evaluate
from offpolicy.workflows.inspect import run_inspect
from offpolicy.workflows.learn import run_learn
from offpolicy.workflows.log_spec import LogSpec
from offpolicy.workflows.prepare import run_prepare
from offpolicy.workflows.run import Finished, RunOptions, check_output_file
from offpolicy.workflows.ship import run_export, run_recommend
from offpolicy.workflows.tune import run_tune

__all__ = [
    "SHOWN",
    "DemoResult",
    "Finished",
    "LogSpec",
    "Propensities",
    "RunOptions",
    "check_output_file",
    "run_convert",
    "run_demo",
    "run_doctor",
    "run_evaluate",
    "run_export",
    "run_inspect",
    "run_learn",
    "run_prepare",
    "run_recommend",
    "run_tune",
]
