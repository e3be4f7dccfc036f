"""The one door to NVTabular, with its noise left outside.

On a CPU, NVTabular 23.8 warns at import (PyTorch absent, an escape sequence in `stringcase`) and each time it opens a
dataset ("CPU mode"). None of it tells a user anything to act on.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import nvtabular as nvt
    from nvtabular import ops

__all__ = ["nvt", "ops", "quiet_nvtabular"]


@contextmanager
def quiet_nvtabular() -> Iterator[None]:
    """Silence the warnings that NVTabular raise in normal use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*CPU mode.*", category=UserWarning)
        # NVTabular's own advice against num_buckets; `HashedCategorify` is the answer to it.
        warnings.filterwarnings("ignore", message=".*hash-based transformation.*", category=UserWarning)
        warnings.filterwarnings("ignore", message=".*num_buckets without using.*", category=UserWarning)
        # merlin-core passes datasets through fsspec and pandas calls that are deprecated by now.
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield
