"""The one door to NVTabular, with its noise left outside.

On a CPU, NVTabular 23.8 warns at import (PyTorch absent, an escape sequence in `stringcase`) and each time it opens a
dataset ("CPU mode"). None of it tells a user anything to act on.

Importing merlin-core or merlin-systems sets PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python for every child of this
process, in which a server then takes eight times as long to read a SavedModel. The variable is put back as it was.

merlin-core imports TensorFlow, PyTorch and tritonclient where they are installed, for tables of their tensors and the
names of their dtypes. That is most of the time that it takes, and a workflow on DataFrames uses none of it, so it is
left until a part of Merlin that is for one of them is imported, unless a process has imported one of the two frameworks
anyway.

Merlin takes TensorFlow for absent where the machine has a GPU that TensorFlow does not use, as it is with the extra
`cpu`. Workflows run on the processor here, so Merlin is told that there is none.
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
from google.protobuf import descriptor  # noqa: F401  # before Merlin: this process keeps the fast form, too

from rankline.workflows.core.errors import PINNED
from rankline.workflows.core.import_hooks import LoadHook, stand_ins
from rankline.workflows.core.optional_packages import require

require("nvtabular", feature="a workflow of NVTabular", extra=PINNED)

_VARIABLE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
_TENSORFLOW = "merlin.core.compat.tensorflow"
# The dtypes that come with a part of Merlin. Triton's are numbers, which TensorFlow's equal, so they have to be behind
# these: Triton's runtime imports TensorFlow first.
_DTYPES_OF = {
    _TENSORFLOW: "tf",
    "merlin.core.compat.torch": "torch",
    "merlin.systems.dag.runtimes.triton.runtime": "triton",
}
_IN_COLUMNS = {"tensorflow": "tf", "torch": "th"}
"""A framework, and the name that Merlin's module of its columns has for it."""


@contextmanager
def importing_merlin() -> Iterator[None]:
    """Import parts of Merlin in the block, with neither their warnings nor their choice of protobuf."""
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
    """Import NVTabular in the block as where TensorFlow and PyTorch are absent."""
    compat = (f"merlin.core.compat.{framework}" for framework in _IN_COLUMNS)
    dtypes = (f"merlin.dtypes.mappings.{name}" for name in _DTYPES_OF.values())
    with stand_ins({name: dict.fromkeys(_IN_COLUMNS) for name in (*compat, *dtypes)}):
        yield
    LoadHook(_DTYPES_OF, _load_with_dtypes).install()


def _load_with_dtypes(load: Callable[[ModuleType], object], module: ModuleType) -> None:
    """Let Merlin know a framework's dtypes, and convert columns to it, as its own part for that is imported."""
    load(module)
    import_module(f"merlin.dtypes.mappings.{_DTYPES_OF[module.__name__]}")
    framework = module.__name__.rpartition(".")[2]
    if framework in _IN_COLUMNS:
        columns = import_module(f"merlin.table.{framework}_column")
        setattr(columns, _IN_COLUMNS[framework], getattr(module, framework))


# What Merlin 23.8 needs of a Dask of today: the DataFrame of before query planning, strings as Python objects, a
# function where it used to be, and a sort that takes `divisions` (of `split_out`) and passes over them, as it used to.
dask.config.set({"dataframe.query-planning": False, "dataframe.convert-string": False})

# NVTabular sorts values by frequency, and an id is a place in that order. NumPy's own sort leaves equals in an order
# that its version and the processor decide, a stable one in that of the values.
pd.DataFrame.sort_values.__kwdefaults__["kind"] = "stable"

with importing_merlin():
    import merlin.core.compat

    vars(merlin.core.compat)["HAS_GPU"] = False
    _taken = sys.modules.get(_TENSORFLOW)  # by who imported NVTabular before us
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
        """Refuse rows that a matrix lacks, for which NVTabular reads past its end."""
        for rows, features in ((a, a_features), (b, b_features)):
            if not (rows.min() >= 0 and rows.max() < features.shape[0]):
                raise ValueError(f"ColumnSimilarity takes rows from 0 to {features.shape[0] - 1}")
        return _similarities(a, a_features, b, b_features, on_device)

    vars(column_similarity)["row_wise_inner_product"] = _checked_similarities

__all__ = ["from_map", "importing_merlin", "nvt", "ops", "quiet_nvtabular", "without_merlin_log"]


_entering = threading.Lock()
_num_inside = 0
_filters: "warnings.catch_warnings[None] | None" = None


@contextmanager
def quiet_nvtabular() -> Iterator[None]:
    """Silence the warnings that NVTabular raises in normal use.

    Python's filters are those of all threads, and loaders transform in several: the first one that enters sets them,
    the last one that leaves puts them back.
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
    """Without the traceback that NVTabular logs of an operator that fails."""
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
    # NVTabular's own advice against num_buckets; `HashedCategorify` is the answer to it.
    warnings.filterwarnings("ignore", message=".*hash-based transformation.*", category=UserWarning)
    warnings.filterwarnings("ignore", message=".*num_buckets without using.*", category=UserWarning)
    # merlin-core passes datasets through fsspec and pandas calls that are deprecated by now.
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    return filters
