"""The exceptions users see: one family, each message one paragraph that says what is wrong and what to do."""


class OffPolicyError(Exception):
    """Anything the user can fix; commands print its message without a traceback."""


class LogError(OffPolicyError):
    """A log, action table or context file that cannot be read or breaks a rule of the data."""


class ParameterError(OffPolicyError, ValueError):
    """An argument, hyper-parameter or configuration value outside what is allowed."""


class DivergedError(OffPolicyError):
    """A training whose loss or gradient is no longer a finite number."""


class ArtifactError(OffPolicyError):
    """A saved or exported policy that cannot be written, read or trusted."""


class MissingExtraError(OffPolicyError, ImportError):
    """A feature whose optional dependency is not installed."""
