"""The exception of this package."""

from offpolicy.errors import OffPolicyError


class ArtifactError(OffPolicyError):
    """A saved or exported policy that cannot be written, read or trusted."""
