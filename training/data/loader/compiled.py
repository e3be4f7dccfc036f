"""Loops that NumPy cannot write well, compiled by Numba once per machine."""

from typing import Any

from numba import njit


def compiled(function: Any) -> Any:
    """Compile at the first call, and keep the result on disk where there is a place for it."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither the package's directory nor the user's cache can be written
        return njit(nogil=True)(function)
