from rankline.workflows.compiler.expressions import Columns, Expression, apply, cast, unsupported
from rankline.workflows.core.errors import LoweringError
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.operators import NullToEmptyList, PaddedListSlice, SameLengths, VectorElements
from rankline.workflows.nvt.operators.lists import MAX_SLICE_LENGTH
from rankline.workflows.plan.steps import Element, NullToEmpty, Pad, Slice
from rankline.workflows.plan.steps import SameLengths as SameLengthsStep


def lower_null_to_empty_list(op: NullToEmptyList, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    _check_lists(op, selector, columns)
    return {name: apply(NullToEmpty(), columns[name]) for name in selector.names}


def lower_list_slice(op: ops.ListSlice, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    """Slice each list with Python's slicing semantics.

    Raises:
        LoweringError: the operator pads, which NVTabular skips on a CPU if lists are NumPy arrays.
    """
    if op.pad:
        raise unsupported(
            op,
            "pad=True",
            "on a CPU pads Python lists but not the arrays that Categorify and Parquet files produce, so serving "
            "could not match training. Use rankline.workflows.nvt.operators.PaddedListSlice.",
        )
    _check_lists(op, selector, columns)
    width = op.max_elements if op.max_elements < MAX_SLICE_LENGTH else None
    step = Slice(start=op.start, end=int(op.end), width=width)
    return {name: apply(step, columns[name]) for name in selector.names}


def lower_padded_list_slice(op: PaddedListSlice, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    _check_lists(op, selector, columns)
    slice_ = Slice(start=op.start, end=int(op.end), width=op.max_elements)
    lowered = {}
    for name in selector.names:
        if columns[name].is_string != isinstance(op.pad_value, str):
            raise LoweringError(
                f"PaddedListSlice on {name!r}: pad_value {op.pad_value!r} does not match the element type of the lists."
            )
        lowered[name] = apply(Pad(width=op.max_elements, value=op.pad_value), apply(slice_, columns[name]))
    return lowered


def lower_same_lengths(op: SameLengths, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    _check_lists(op, selector, columns)
    if op.like not in columns:
        raise LoweringError(
            f"SameLengths on {selector.names}: {op.like!r} is not among these columns. Select it as well."
        )
    like = columns[op.like]
    return {n: like if n == op.like else apply(SameLengthsStep(), columns[n], like) for n in selector.names}


def lower_vector_elements(op: VectorElements, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    _check_lists(op, selector, columns)
    lowered: dict[str, Expression] = {}
    for name in selector.names:
        length = op.lengths[name]
        for number in range(length):
            element = apply(Element(column=name, place=number, length=length), columns[name])
            lowered[f"{name}_{number}"] = cast(element, "float64")
    return lowered


def _check_lists(op: object, selector: nvt.ColumnSelector, columns: Columns) -> None:
    for name in selector.names:
        if not columns[name].is_list:
            raise LoweringError(
                f"{type(op).__name__} on {name!r}: the column contains one {columns[name].dtype} per row, "
                "expected lists."
            )
