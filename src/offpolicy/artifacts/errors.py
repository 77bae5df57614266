"""The exception of this room."""

from offpolicy.errors import OffPolicyError


class ArtifactError(OffPolicyError):
    """A saved or exported policy that cannot be written, read or trusted."""
