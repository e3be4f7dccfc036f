"""Functions that cast Arrow columns to numbers, strings or lists, shared by `prepare`, the server and its clients.

    boolean                           0 and 1, int64
    decimal                           float64
    date, timestamp                   microseconds since 1970 in UTC, int64; without a time zone, UTC is assumed
    dictionary, run-end encoded       their values
    float16; views of strings, lists  float32; strings and lists
    number, string, and lists         unchanged; lists of the above become lists of the corresponding type

Timestamps travel as integers because Triton tensors have no timestamp type. Parts of a timestamp (hour, weekday) are
computed in the served graph, so clients need not compute them.
"""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

_AS_THEY_ARE = frozenset(
    kind.id
    for kind in (
        pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
        pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary(),
    )
)  # fmt: skip


def holds_lists(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def of_plain_type(column: pa.Array) -> pa.Array:
    """Convert views, float16 and run-end encoding in an unchunked column to types that Arrow's functions support."""
    kind = column.type
    if pa.types.is_run_end_encoded(kind):
        return of_plain_type(pc.run_end_decode(column))
    if pa.types.is_float16(kind):
        return column.cast(pa.float32())
    if _is_view(kind, "string", "binary"):
        return column.cast(pa.string() if _is_view(kind, "string") else pa.binary())
    if pa.types.is_dictionary(kind):
        values = of_plain_type(column.dictionary)
        return column if values.type == kind.value_type else pa.DictionaryArray.from_arrays(column.indices, values)
    if _is_view(kind, "list", "large_list"):  # Arrow's cast makes damaged lists
        return _lists_like(column, of_plain_type(pc.list_flatten(column)))
    if holds_lists(kind):
        elements = of_plain_type(column.flatten())
        return column if elements.type == kind.value_type else _lists_like(column, elements)
    return column


def _is_view(kind: pa.DataType, *names: str) -> bool:
    """Whether the type is one of the named view types, which some versions of Arrow lack."""
    return any(getattr(pa.types, f"is_{name}_view", lambda _: False)(kind) for name in names)


def plain_values(column: pa.Array) -> pa.Array:
    """Cast an unchunked column according to the module's table, or return it unchanged if its type is not in the table.

    Raises:
        pyarrow.ArrowException: a value is out of range.
    """
    if column.type.id in _AS_THEY_ARE:  # the checks below take longer than serving one row
        return column
    column = of_plain_type(column)
    kind = column.type
    if pa.types.is_dictionary(kind):
        return plain_values(column.dictionary_decode())
    if pa.types.is_boolean(kind):
        return column.cast(pa.int64())
    if pa.types.is_decimal(kind):
        return column.cast(pa.float64())
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pc.cast(column, pa.timestamp("us", kind.tz if pa.types.is_timestamp(kind) else None), safe=False).cast(
            pa.int64()
        )
    if holds_lists(kind):
        elements = plain_values(column.flatten())
        return column if elements.type == kind.value_type else _lists_like(column, elements)
    return column


def _lists_like(column: pa.Array, elements: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    offsets = pa.array([0, *lengths.cumsum()], pa.int64())
    mask = column.is_null() if column.null_count else None
    return pa.LargeListArray.from_arrays(offsets, elements, mask=mask)


def numbers_as_written(rows: pa.Table, columns: Collection[str]) -> pa.Table:
    """Convert string columns to numbers if lossless (00501 and 1.50 stay strings). Empty strings become null."""
    for place, name in enumerate(rows.column_names):  # names may be duplicated
        if name in columns:
            texts = rows.column(place).combine_chunks()
            texts = pc.if_else(pc.equal(texts, ""), None, texts)
            found = (_exact(texts, kind) for kind in (pa.int64(), pa.float64()))
            rows = rows.set_column(place, name, next((values for values in found if values is not None), texts))
    return rows


def _exact(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Cast strings to numbers, or return None if casting back does not restore every string."""
    numbers = None
    for part in (texts.slice(0, 100), texts):  # try a few first: a failing cast still scans all texts
        try:
            numbers = part.cast(kind)
        except pa.ArrowInvalid:
            return None
        if not numbers.cast(pa.string()).equals(part):
            return None
    return numbers
