"""What each command does: read, estimate, write; the command line only parses and prints."""

from offpolicy.workflows.demo import DemoResult, Propensities, run_demo
from offpolicy.workflows.inspect import run_inspect
from offpolicy.workflows.results_file import RunOptions
from offpolicy.workflows.roles import LogSpec
from offpolicy.workflows.runs import run_evaluate, run_learn, run_tune
from offpolicy.workflows.shipping import run_export, run_recommend

__all__ = [
    "DemoResult",
    "LogSpec",
    "Propensities",
    "RunOptions",
    "run_demo",
    "run_evaluate",
    "run_export",
    "run_inspect",
    "run_learn",
    "run_recommend",
    "run_tune",
]
