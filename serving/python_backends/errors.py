"""Distinguish faults of a request from faults of the server."""

_NOT_OF_THE_REQUEST = (MemoryError, OSError, ImportError, AttributeError, NameError, AssertionError)
_NAMES = {"ResourceExhaustedError", "OutOfMemoryError", "InternalError", "UnknownError", "FailedPreconditionError"}
"""Names of framework exceptions, to avoid importing the frameworks."""


def is_of_the_request(error: Exception) -> bool:
    """Whether the request itself caused an error, such as by values or shapes that do not fit.

    Lack of memory, unreadable files and bugs are errors of the server.
    """
    return not isinstance(error, _NOT_OF_THE_REQUEST) and not _NAMES & {kind.__name__ for kind in type(error).__mro__}
