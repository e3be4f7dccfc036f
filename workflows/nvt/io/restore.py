"""Build a saved workflow from its pickle, accepting only the kinds of objects that have a rule here.

NVTabular saves workflows as pickles, which could run any code. The pickle is read as data
(`workflows/nvt/io/pickle_reader.py`) and its objects are created here. Graphs, schemas and operators are created empty,
without calling their constructors, and then filled. Arrays and frames are created from their values, with dtypes for
plain values only. A Dataset is created from its frame, not from its Dask graph. Functions in operators are not loaded,
whatever they contain (`workflows/nvt/io/functions.py`).
"""

import importlib
import inspect
import math
import re
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
from numpy.typing import NDArray

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.io.functions import HELD_BY, UnloadedFunction, named_function
from rankline.workflows.nvt.io.pickle_reader import PickledObject, is_name

from merlin.dag.executors import DaskExecutor  # isort: skip
from merlin.schema import Schema  # isort: skip

GROUP = "rankline.operators"

_OPERATORS = ("nvtabular.ops.", "rankline.workflows.nvt.operators")

# Classes that are instantiated empty and filled with the saved state.
_RESTORABLE_CLASSES = {
    "merlin.dag.graph": {"Graph"},
    "merlin.dag.node": {"Node"},
    "merlin.dag.ops.concat_columns": {"ConcatColumns"},
    "merlin.dag.ops.grouping": {"GroupingOp"},
    "merlin.dag.ops.selection": {"SelectionOp"},
    "merlin.dag.ops.subgraph": {"Subgraph"},
    "merlin.dag.ops.subset_columns": {"SubsetColumns"},
    "merlin.dag.ops.subtraction": {"SubtractionOp"},
    "merlin.dag.ops.udf": {"UDF"},
    "merlin.dag.selector": {"ColumnSelector"},
    "merlin.dtypes.base": {"DType"},
    "merlin.dtypes.shape": {"Dimension", "Shape"},
    "merlin.schema.schema": {"ColumnSchema", "Schema"},
    "merlin.schema.tags": {"TagSet"},
    "nvtabular.workflow.node": {"WorkflowNode"},
    "nvtabular.workflow.workflow": {"Workflow"},
}
_ENUMS = {
    "merlin.core.dispatch": {"ExtData"},
    "merlin.dag.executors": {"Device"},
    "merlin.dag.operator": {"DataFormats"},
    "merlin.dtypes.base": {"ElementType", "ElementUnit", "Signedness"},
    "merlin.schema.tags": {"Tags"},
}
# Types used as values: operators store them as output dtypes.
_TYPES = {
    "builtins": {"bool", "int", "float", "str", "object"},
    "numpy": {
        "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
        "float64",
    },
}  # fmt: skip
# Components of the parts above, handled by the rules of those parts.
_INNER = {
    "dask.dataframe.core": {"DataFrame"},
    "dask.highlevelgraph": {"HighLevelGraph", "MaterializedLayer"},
    "merlin.dag.executors": {"LocalExecutor"},
    "merlin.io.dataframe_engine": {"DataFrameDatasetEngine"},
    "numpy": {"ndarray"},
    "pandas._libs.internals": {"_unpickle_block"},
    "pandas.core.indexes.base": {"Index"},
    "pandas.core.indexes.numeric": {"Float64Index", "Int64Index", "UInt64Index"},
    "pandas.core.indexes.range": {"RangeIndex"},
    "pandas.core.internals.managers": {"BlockManager", "SingleBlockManager"},
}
_ATOMS = frozenset({type(None), bool, int, float, str, bytes})
_NUMBERS = re.compile(r"[biuf]\d{1,2}|[SU]\d{1,6}")
_TIMES = re.compile(r"[Mm]8")
_TIME_UNITS = frozenset(
    unit.encode() for unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as")
)


# Classes whose instances may refer to each other or to themselves.
_NODES = frozenset({"merlin.dag.node.Node", "merlin.io.dataset.Dataset", "nvtabular.workflow.node.WorkflowNode"})
_MIN_BYTES, _MAX_RATIO = 64 << 20, 32
"""Limits on the expanded size of a file: an absolute size, or a multiple of the file size, whichever is larger.
Repeated texts are stored only once in the file.
"""
_MAX_COLUMNS = 1 << 24  # of a sparse matrix; NVTabular allocates a count for each
_MAX_EMPTY_LENGTH = 1 << 16  # rows or columns of an array without values


def check_extent(tree: Any, num_bytes: int) -> None:
    """Reject a tree whose expanded size far exceeds the file size because of repeated references.

    Raises:
        ArtifactError: the tree expands too much, or it contains itself other than through the nodes of a graph.
    """
    extents: dict[int, int] = {}  # approximate bytes of an expanded part; -1 while being computed
    nodes = [tree]

    def extent(part: Any) -> int:
        if type(part) in _ATOMS or type(part) is bytearray:
            return 8 + len(part) if isinstance(part, str | bytes | bytearray) else 8
        if id(part) not in extents:
            extents[id(part)] = -1
            extents[id(part)] = 8 + sum(map(of_inner, _contents_of(part)))
        if extents[id(part)] < 0:
            raise ArtifactError("it contains itself")
        return extents[id(part)]

    def of_inner(part: Any) -> int:
        if isinstance(part, PickledObject) and part.name in _NODES:
            nodes.append(part)
            return 8
        return extent(part)

    total, seen = 0, set[int]()
    while nodes:
        node = nodes.pop()
        if id(node) not in seen:
            seen.add(id(node))
            total += extent(node)
        if total > max(_MIN_BYTES, _MAX_RATIO * num_bytes):
            raise ArtifactError(f"it has {num_bytes} bytes but expands to more than {_MAX_RATIO} times that size")


def _contents_of(part: Any) -> Iterable[Any]:
    if isinstance(part, PickledObject | dict):
        return _parts_of(part)  # without functions, because they are not loaded
    return part if isinstance(part, list | tuple | set | frozenset) else ()


def make_parts(tree: Any) -> Any:
    _check_names(tree)
    return _Maker().make(tree)


def _check_names(tree: Any) -> None:
    """Check, before any object is built, that every name in the tree has a rule. Operator functions are exempt."""
    seen: set[int] = set()
    left = [tree]
    while left:
        part = left.pop()
        if type(part) in _ATOMS or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, PickledObject) or is_name(part):
            _check_name(part)
        left.extend(reversed(_parts_of(part)))


def _parts_of(part: Any) -> list[Any]:
    """Return the components of a part in file order, excluding operator functions."""
    if isinstance(part, PickledObject):
        held = _functions_of(part)
        if not held:
            return [part.arguments, part.state]
        return [part.arguments, *part.state, *(value for name, value in part.state.items() if name not in held)]
    if isinstance(part, dict):
        return [side for item in part.items() for side in item]
    if isinstance(part, list | tuple | set | frozenset) and not _ATOMS.issuperset(map(type, part)):
        return list(part)
    return []


def has_rule(module: str, name: str) -> bool:
    """Whether a class can be restored, either by a rule or as an operator of a known package."""
    return f"{module}.{name}" in _RULES or _is_operator_name(module, name)


def _check_name(call: Any) -> None:
    if not (_is_no_object(call.module, call.attribute) or has_rule(call.module, call.attribute)):
        raise _not_data(call.name)


def _functions_of(call: PickledObject) -> dict[str, Any]:
    if call.name not in HELD_BY or not isinstance(call.state, dict):
        return {}
    held = {name: call.state.get(name) for name in HELD_BY[call.name]}
    return {name: part for name, part in held.items() if isinstance(part, PickledObject) or is_name(part)}


class _Maker:
    """Builds the objects of a parsed pickle, each only once even if it is referenced several times."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}

    def make(self, part: Any) -> Any:
        kind = type(part)
        if kind in _ATOMS:
            return part
        if id(part) in self._made:
            return self._made[id(part)]
        if kind in (list, set, dict):
            return self._filled(part)
        if kind in (tuple, frozenset):
            return self.keep(part, kind(self.all(part)))
        if kind is bytearray:
            return bytes(part)
        if isinstance(part, PickledObject):
            return self._called(part)
        if is_name(part) and part.attribute in _TYPES.get(part.module, ()):
            return getattr(importlib.import_module(part.module), part.attribute)
        raise _not_data(part.name if kind is type else kind.__name__)

    def all(self, parts: Iterable[Any]) -> Iterable[Any]:
        return parts if _ATOMS.issuperset(map(type, parts)) else [self.make(part) for part in parts]

    def keep(self, part: Any, made: Any) -> Any:
        """Register the object built for a part. In cyclic graphs, this must happen before its contents are built."""
        self._made[id(part)] = made
        return made

    def _filled(self, part: Any) -> Any:
        made = self.keep(part, type(part)())
        if isinstance(part, dict):
            made.update(zip(self.all(part.keys()), self.all(part.values()), strict=True))
        elif isinstance(part, set):
            made.update(self.all(part))
        else:
            made.extend(self.all(part))
        return made

    def state_of(self, call: PickledObject) -> Any:
        held = _functions_of(call)
        if not held:
            return self.make(call.state)
        functions = {
            name: named_function(part.module, part.attribute) if is_name(part) else UnloadedFunction()
            for name, part in held.items()
        }
        others = {self.make(name): self.make(part) for name, part in call.state.items() if name not in held}
        return others | functions

    def _called(self, call: PickledObject) -> Any:
        _check_name(call)  # checked again for the objects that are actually built
        if _is_no_object(call.module, call.attribute):
            raise _unexpected(call)
        return self.keep(call, _RULES.get(call.name, _make_operator)(self, call))


def _is_no_object(module: str, name: str) -> bool:
    """Whether a class may appear only as a reference or inside another object, and so cannot be built on its own."""
    return any(name in names.get(module, ()) for names in (_TYPES, _INNER)) and f"{module}.{name}" not in _RULES


def _not_data(name: str) -> ArtifactError:
    return ArtifactError(f"it refers to {name}, which is not data")


def _unexpected(call: PickledObject) -> ArtifactError:
    return ArtifactError(f"it contains {call.name} with arguments or state that NVTabular does not save")


def _make_shell(maker: _Maker, call: PickledObject) -> Any:
    return _fill(maker, call, getattr(importlib.import_module(call.module), call.attribute))


def _make_operator(maker: _Maker, call: PickledObject) -> Any:
    try:
        module = importlib.import_module(call.module)
    except Exception as error:
        raise ImportError(f"{call.module}: {type(error).__name__}: {error}") from error
    kind = getattr(module, call.attribute, None)
    # The class must be defined in the module, not just imported there: modules contain more than their own classes.
    if not (isinstance(kind, type) and issubclass(kind, ops.Operator) and kind.__module__ == call.module):
        raise _not_data(call.name)
    if "__reduce__" not in {name for ancestor in kind.__mro__[:-1] for name in vars(ancestor)}:
        return _fill(maker, call, kind)
    if call.state is not None:
        raise _unexpected(call)
    return kind(*maker.all(call.arguments))


def _fill(maker: _Maker, call: PickledObject, kind: Any) -> Any:
    if call.arguments:
        raise _unexpected(call)
    made = maker.keep(call, kind.__new__(kind))
    state = maker.state_of(call)
    if hasattr(kind, "__setstate__"):
        made.__setstate__(state)
    elif state is not None:
        if not isinstance(state, dict) or any(_is_behaviour(kind, name) for name in state):
            raise _unexpected(call)
        vars(made).update(state)
    return made


def _is_behaviour(kind: type, name: Any) -> bool:
    """Whether an attribute of this name would replace a method."""
    return not isinstance(name, str) or name.startswith("__") or inspect.isroutine(getattr(kind, name, None))


def _is_operator_name(module: str, name: str) -> bool:
    return (module.startswith(_OPERATORS) and "." not in name) or f"{module}:{name}" in {
        entry.value for entry in entry_points(group=GROUP)
    }


def _make_enum(_maker: _Maker, call: PickledObject) -> Any:
    match call.arguments, call.state:
        case (str() | int() as value,), None:
            return getattr(importlib.import_module(call.module), call.attribute)(value)
    raise _unexpected(call)


def _make_executor(_maker: _Maker, _call: PickledObject) -> Any:
    """Create a new executor; the saved one is ignored."""
    return DaskExecutor()


def _make_slice(_maker: _Maker, call: PickledObject) -> Any:
    match call.arguments, call.state:
        case (int() | None, int() | None, int() | None), None:
            return slice(*call.arguments)
    raise _unexpected(call)


def _make_dtype(_maker: _Maker, call: PickledObject) -> Any:
    match call.arguments, call.state:
        case ("O8", False, True), (3, "|", None, None, None, -1, -1, 63):
            return np.dtype(object)
        case (str(code), False, True), (3, "<" | ">" | "|" as order, None, None, None, int(), int(), 0 | 8):
            if _NUMBERS.fullmatch(code):
                return np.dtype(code).newbyteorder(order)
        case (str(code), False, True), (4, "<" | ">" as order, None, None, None, -1, -1, 0, time):
            return _time_dtype(call, code, time).newbyteorder(order)
    raise _unexpected(call)


def _time_dtype(call: PickledObject, code: str, time: Any) -> "np.dtype[Any]":
    match time:
        case ({**rest}, (bytes(unit), int(count), 1, 1)) if not rest and unit in _TIME_UNITS and _TIMES.fullmatch(code):
            return np.dtype(f"{code}[{count}{unit.decode()}]")
    raise _unexpected(call)


def _make_array(maker: _Maker, call: PickledObject) -> NDArray[Any]:
    match call.arguments, call.state:
        case (kind, (0,), b"b"), (1, tuple(shape), dtype, bool(is_fortran), bytes() | list() as values):
            if kind.name == "numpy.ndarray":
                return _array_of(maker, call, values, dtype, shape, "F" if is_fortran else "C")
    raise _unexpected(call)


def _make_array_of_buffer(maker: _Maker, call: PickledObject) -> NDArray[Any]:
    match call.arguments, call.state:
        case (bytes() | bytearray() as values, dtype, tuple(shape), "C" | "F" as order), None:
            return _array_of(maker, call, values, dtype, shape, order)
    raise _unexpected(call)


def _array_of(maker: _Maker, call: PickledObject, values: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    made_dtype = maker.make(dtype)
    if not isinstance(made_dtype, np.dtype) or made_dtype.hasobject != isinstance(values, list):
        raise _unexpected(call)
    if isinstance(values, list):
        flat = np.fromiter(maker.all(values), dtype=object, count=len(values))
    else:
        flat = np.frombuffer(bytearray(values), dtype=made_dtype)
    # An array without values may have one dimension of any length.
    if not all(type(size) is int and 0 <= size <= max(len(flat), _MAX_EMPTY_LENGTH) for size in shape):
        raise _unexpected(call)
    if math.prod(shape) != len(flat):
        raise _unexpected(call)
    return flat.reshape(shape, order=order)


def _make_scalar(maker: _Maker, call: PickledObject) -> Any:
    match call.arguments, call.state:
        case (dtype, bytes(value)), None:
            return _array_of(maker, call, value, dtype, (1,), "C")[0]
    raise _unexpected(call)


def _make_index(maker: _Maker, call: PickledObject) -> Any:
    match call.arguments, call.state:
        case (kind, {"data": PickledObject() as data, "name": name, **rest}), None if not rest:
            values = maker.make(data)
            if kind.name.startswith("pandas.core.indexes.") and isinstance(values, np.ndarray):
                return pd.Index(values, dtype=values.dtype, name=maker.make(name))
        case (kind, {"start": int(start), "stop": int(stop), "step": int(step), "name": name, **rest}), None:
            if kind.name == "pandas.core.indexes.range.RangeIndex" and not rest:
                return pd.RangeIndex(start, stop, step, name=maker.make(name))
    raise _unexpected(call)


def _make_frame(maker: _Maker, call: PickledObject) -> pd.DataFrame:
    match call.arguments, call.state:
        case (), {"_mgr": PickledObject(name="pandas.core.internals.managers.BlockManager") as manager}:
            blocks, axes = manager.arguments
            columns, index = (_index_of(maker, call, axis) for axis in axes)
            return _frame_of(maker, call, blocks, columns, index)
    raise _unexpected(call)


def _frame_of(maker: _Maker, call: PickledObject, blocks: Any, columns: pd.Index, index: pd.Index) -> pd.DataFrame:
    by_position: dict[int, NDArray[Any]] = {}
    parts = [_block_of(maker, call, block) for block in blocks]
    if len(columns) != sum(len(rows) for rows, _ in parts):  # checked first: an index may claim any length
        raise _unexpected(call)
    for rows, placement in parts:
        positions = np.arange(len(columns))[placement]
        by_position.update(zip(positions.tolist(), rows, strict=True))
    if not by_position or set(by_position) != set(range(len(columns))):
        raise _unexpected(call)
    # Use numbers as keys first, because names may be duplicated.
    frame = pd.DataFrame({position: by_position[position] for position in range(len(columns))}, index=index)
    frame.columns = columns
    return frame


def _block_of(maker: _Maker, call: PickledObject, block: Any) -> tuple[NDArray[Any], Any]:
    """Return one block of a pandas frame: an array whose rows are columns of one dtype, and their positions."""
    match block:
        case PickledObject(name="pandas._libs.internals._unpickle_block", arguments=(values, placement, 2)):
            rows = maker.make(values)
            if isinstance(rows, np.ndarray) and rows.ndim == 2:
                return rows, maker.make(placement)
    raise _unexpected(call)


def _make_series(maker: _Maker, call: PickledObject) -> "pd.Series[Any]":
    match call.arguments, call.state:
        case (), {"_mgr": PickledObject(state=([axis], [values], *_)), "name": name}:
            array, index = maker.make(values), _index_of(maker, call, axis)
            if isinstance(array, np.ndarray) and array.shape == index.shape:  # pandas would broadcast a single value
                return pd.Series(array, index=index, name=maker.make(name))
    raise _unexpected(call)


def _index_of(maker: _Maker, call: PickledObject, axis: Any) -> pd.Index:
    index = maker.make(axis)
    if not isinstance(index, pd.Index):
        raise _unexpected(call)
    return index


def _make_matrix(maker: _Maker, call: PickledObject) -> Any:
    match call.arguments, call.state:
        case (), {"_shape": (int(height), int(width)), "data": data, "indices": indices, "indptr": starts}:
            if width > _MAX_COLUMNS:
                raise ArtifactError(f"{call.name} has {width} columns, expected at most {_MAX_COLUMNS}")
            matrix = scipy.sparse.csr_matrix(
                tuple(maker.make(part) for part in (data, indices, starts)), shape=(height, width)
            )
            # SciPy and NVTabular do not check for out-of-range indices.
            matrix.check_format(full_check=True)
            return matrix
    raise _unexpected(call)


def _make_dataset(maker: _Maker, call: PickledObject) -> Any:
    """Rebuild the `Dataset` in a saved `JoinExternal` operator from its DataFrame partitions."""
    match call.arguments, call.state:
        case (), {
            "schema": schema,
            "engine": PickledObject(state={"_ddf": PickledObject(state=(PickledObject(state=graph), str(name), *_))}),
        }:
            match graph:
                case {"layers": {**layers}} if list(layers) == [name]:
                    return _dataset_of(maker, call, layers[name], maker.make(schema))
    raise _unexpected(call)


def _dataset_of(maker: _Maker, call: PickledObject, layer: Any, schema: Any) -> Any:
    match layer:
        case PickledObject(state={"mapping": {**parts}}) if parts:
            frames = [maker.make(frame) for _, frame in sorted(parts.items(), key=lambda part: int(part[0][1]))]  # type: ignore[index]
            if isinstance(schema, Schema) and all(isinstance(frame, pd.DataFrame) for frame in frames):
                return nvt.Dataset(frames[0] if len(frames) == 1 else pd.concat(frames), schema=schema)
    raise _unexpected(call)


_Rule = Callable[[_Maker, PickledObject], Any]
_RULES: dict[str, _Rule] = {
    **{f"{module}.{name}": _make_shell for module, names in _RESTORABLE_CLASSES.items() for name in names},
    **{f"{module}.{name}": _make_enum for module, names in _ENUMS.items() for name in names},
    "builtins.slice": _make_slice,
    "merlin.dag.executors.DaskExecutor": _make_executor,
    "merlin.io.dataset.Dataset": _make_dataset,
    "numpy.core.multiarray._reconstruct": _make_array,
    "numpy.core.multiarray.scalar": _make_scalar,
    "numpy.core.numeric._frombuffer": _make_array_of_buffer,
    "numpy.dtype": _make_dtype,
    "pandas.core.frame.DataFrame": _make_frame,
    "pandas.core.indexes.base._new_Index": _make_index,
    "pandas.core.series.Series": _make_series,
    "scipy.sparse._csr.csr_matrix": _make_matrix,
}
