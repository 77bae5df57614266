"""Policies as files: save and load, recommend in the user's own ids, export to ONNX. Atomic, checksummed, no pickle."""

from offpolicy.artifacts.document import library_versions
from offpolicy.artifacts.folder import load_policy, save_policy
from offpolicy.artifacts.onnx_export import export_onnx
from offpolicy.artifacts.onnx_parity import Parity, check_parity
from offpolicy.artifacts.onnx_policy import OnnxPolicy
from offpolicy.artifacts.ranking import Mode
from offpolicy.artifacts.saved_policy import SavedPolicy
from offpolicy.artifacts.sources import FORMS, TableSource, policy_source
from offpolicy.errors import ArtifactError

__all__ = [
    "FORMS",
    "ArtifactError",
    "Mode",
    "OnnxPolicy",
    "Parity",
    "SavedPolicy",
    "TableSource",
    "check_parity",
    "export_onnx",
    "library_versions",
    "load_policy",
    "policy_source",
    "save_policy",
]
