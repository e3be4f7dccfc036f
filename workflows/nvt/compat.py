"""Import NVTabular with workarounds for its side effects. Other modules import it from here.

On a CPU, NVTabular 23.8 warns at import (PyTorch absent, an escape sequence in `stringcase`) and each time it opens a
dataset ("CPU mode"). Users cannot act on these warnings, so they are suppressed.

Importing merlin-core or merlin-systems sets PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python for every child of this
process, which makes a server eight times slower to read a SavedModel. The variable is restored after the import.

merlin-core imports TensorFlow, PyTorch and tritonclient if they are installed, to support tables of their tensors and
their dtypes. This takes most of the import time, and a workflow on DataFrames does not use it. The imports are
therefore deferred until a part of Merlin for one of these packages is imported, unless the process has already imported
TensorFlow or PyTorch.

Merlin assumes that TensorFlow is absent if the machine has a GPU that TensorFlow does not use, as with the extra `cpu`.
Rankline runs workflows on the CPU, so Merlin is configured to see no GPU.
"""

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module, reload
from types import ModuleType
from typing import Any

import dask
import pandas as pd
from google.protobuf import descriptor  # noqa: F401  # before Merlin, so that this process keeps the fast implementation

from rankline.workflows.core.errors import PINNED
from rankline.workflows.core.optional_packages import LoadHook, require, stand_ins
from rankline.workflows.nvt import dask_options  # noqa: F401  # before Dask's DataFrames

require("nvtabular", feature="an NVTabular workflow", extra=PINNED)

_VARIABLE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
_TENSORFLOW = "merlin.core.compat.tensorflow"
# Dtype mappings by the part of Merlin that needs them. Triton's must come last: they are integers that equal
# TensorFlow's, and importing Triton's runtime first imports TensorFlow.
_DTYPES_OF = {
    _TENSORFLOW: "tf",
    "merlin.core.compat.torch": "torch",
    "merlin.systems.dag.runtimes.triton.runtime": "triton",
}
_IN_COLUMNS = {"tensorflow": "tf", "torch": "th"}
"""Framework → its alias in Merlin's module for the framework's columns."""


@contextmanager
def importing_merlin() -> Iterator[None]:
    """Suppress warnings and preserve the protobuf implementation while the block imports parts of Merlin."""
    before = os.environ.get(_VARIABLE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = before


@contextmanager
def _without_frameworks() -> Iterator[None]:
    """Hide TensorFlow and PyTorch while the block imports NVTabular."""
    compat = (f"merlin.core.compat.{framework}" for framework in _IN_COLUMNS)
    dtypes = (f"merlin.dtypes.mappings.{name}" for name in _DTYPES_OF.values())
    with stand_ins({name: dict.fromkeys(_IN_COLUMNS) for name in (*compat, *dtypes)}):
        yield
    LoadHook(_DTYPES_OF, _load_with_dtypes).install()


def _load_with_dtypes(load: Callable[[ModuleType], object], module: ModuleType) -> None:
    """Load Merlin's compatibility module for a framework, which Merlin's dtypes and table columns can then use."""
    load(module)
    import_module(f"merlin.dtypes.mappings.{_DTYPES_OF[module.__name__]}")
    framework = module.__name__.rpartition(".")[2]
    if framework in _IN_COLUMNS:
        columns = import_module(f"merlin.table.{framework}_column")
        setattr(columns, _IN_COLUMNS[framework], getattr(module, framework))


# NVTabular sorts values by frequency and uses the position as id. NumPy's default sort orders ties differently between
# versions and CPUs; a stable sort keeps ties in the order of the values.
pd.DataFrame.sort_values.__kwdefaults__["kind"] = "stable"

with importing_merlin():
    import merlin.core.compat

    vars(merlin.core.compat)["HAS_GPU"] = False
    _taken = sys.modules.get(_TENSORFLOW)  # set if NVTabular was imported before this module
    if _taken is not None and _taken.tensorflow is None:
        _load_with_dtypes(reload, _taken)

    import dask.dataframe.utils
    from dask.dataframe.dispatch import hash_object_dispatch

    vars(dask.dataframe.utils)["hash_object_dispatch"] = hash_object_dispatch
    _sort_values = dask.dataframe.shuffle.sort_values

    def _sort_without_divisions(*args: Any, **options: Any) -> Any:
        options.pop("divisions", None)
        return _sort_values(*args, **options)

    vars(dask.dataframe.shuffle)["sort_values"] = _sort_without_divisions
    with nullcontext() if {"tensorflow", "torch"} & sys.modules.keys() else _without_frameworks():
        import nvtabular as nvt
        from nvtabular import ops
    from dask.dataframe.io.io import from_map
    from nvtabular.ops import column_similarity

    _similarities = column_similarity.row_wise_inner_product

    def _checked_similarities(a: Any, a_features: Any, b: Any, b_features: Any, on_device: bool = True) -> Any:
        """Compute similarities like NVTabular, but reject row numbers out of range instead of reading past the end."""
        for rows, features in ((a, a_features), (b, b_features)):
            if not (rows.min() >= 0 and rows.max() < features.shape[0]):
                raise ValueError(f"ColumnSimilarity expects row numbers from 0 to {features.shape[0] - 1}")
        return _similarities(a, a_features, b, b_features, on_device)

    vars(column_similarity)["row_wise_inner_product"] = _checked_similarities

__all__ = ["from_map", "importing_merlin", "nvt", "ops", "quiet_nvtabular", "without_merlin_log"]


_entering = threading.Lock()
_num_inside = 0
_filters: "warnings.catch_warnings[None] | None" = None


@contextmanager
def quiet_nvtabular() -> Iterator[None]:
    """Silence the warnings that NVTabular raises in normal use.

    Python's warning filters are shared by all threads, and loaders transform in several threads: the first thread to
    enter sets the filters, and the last one to leave restores them.
    """
    global _num_inside, _filters
    with _entering:
        if not _num_inside:
            _filters = _ignored()
        _num_inside += 1
    try:
        yield
    finally:
        with _entering:
            _num_inside -= 1
            if not _num_inside and _filters is not None:
                _filters.__exit__(None, None, None)


@contextmanager
def without_merlin_log() -> Iterator[None]:
    """Suppress the traceback that NVTabular logs when an operator fails."""
    log = logging.getLogger("merlin")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _ignored() -> "warnings.catch_warnings[None]":
    filters = warnings.catch_warnings()
    filters.__enter__()
    warnings.filterwarnings("ignore", message=".*CPU mode.*", category=UserWarning)
    # NVTabular warns against num_buckets; `HashedCategorify` fixes the problem that the warning describes.
    warnings.filterwarnings("ignore", message=".*hash-based transformation.*", category=UserWarning)
    warnings.filterwarnings("ignore", message=".*num_buckets without using.*", category=UserWarning)
    # merlin-core uses fsspec and pandas functions that are now deprecated.
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    return filters
