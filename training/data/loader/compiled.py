"""Numba compilation of loops that NumPy cannot express well, cached per machine."""

from typing import Any

from numba import njit


def compiled(function: Any) -> Any:
    """Compile at the first call, and cache the result on disk if possible."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither the package directory nor the user cache is writable
        return njit(nogil=True)(function)
