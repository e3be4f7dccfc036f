"""Whose fault it is that a request could not be run."""

_NOT_OF_THE_REQUEST = (MemoryError, OSError, ImportError, AttributeError, NameError, AssertionError)
_NAMES = {"ResourceExhaustedError", "OutOfMemoryError", "InternalError", "UnknownError", "FailedPreconditionError"}
"""Of frameworks, which are not imported for it."""


def is_of_the_request(error: Exception) -> bool:
    """Whether another request may fare better: values and shapes do not fit; not memory, files or a fault of ours."""
    return not isinstance(error, _NOT_OF_THE_REQUEST) and not _NAMES & {kind.__name__ for kind in type(error).__mro__}
