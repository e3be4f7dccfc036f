"""The one door to NVTabular, with its noise left outside.

On a CPU, NVTabular 23.8 warns at import (PyTorch absent, an escape sequence in `stringcase`) and each time it opens a
dataset ("CPU mode"). None of it tells a user anything to act on.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import dask

# What Merlin 23.8 needs of a Dask of today: the DataFrame of before query planning, strings as Python objects, and a
# function where it used to be.
dask.config.set({"dataframe.query-planning": False, "dataframe.convert-string": False})
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import dask.dataframe.utils as _dask_utils
    from dask.dataframe.dispatch import hash_object_dispatch

    _dask_utils.hash_object_dispatch = hash_object_dispatch
    import nvtabular as nvt
    from dask.dataframe.io.io import from_map
    from nvtabular import ops

__all__ = ["from_map", "nvt", "ops", "quiet_nvtabular"]


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
