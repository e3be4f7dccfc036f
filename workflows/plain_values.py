"""Any Arrow column as numbers, strings or lists of them: the casts that `prepare`, a request and its client share.

    boolean                           0 and 1, int64
    decimal                           float64
    date, timestamp                   microseconds since 1970 in UTC, int64; one without a zone is taken as UTC
    dictionary                        its values
    number, string, and lists         as they are; lists of the above become lists of the same

Timestamps travel as whole numbers because a tensor has no other type for them, and their parts (hour, weekday) are
steps of the served graph, so no client has to know them.
"""

import pyarrow as pa
import pyarrow.compute as pc


def holds_lists(kind: pa.DataType) -> bool:
    """Lists of any of Arrow's kinds."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    """Strings of either width."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def plain_values(column: pa.Array) -> pa.Array:
    """A column without Arrow's finer types; what has no plain form is handed back as it is.

    Args:
        column: no chunks.

    Raises:
        pyarrow.ArrowException: a value is out of range.
    """
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
        return _plain_lists(column)
    return column


def _plain_lists(column: pa.Array) -> pa.Array:
    elements = plain_values(column.flatten())
    if elements.type == column.type.value_type:
        return column
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    offsets = pa.array([0, *lengths.cumsum()], pa.int64())
    mask = column.is_null() if column.null_count else None
    return pa.LargeListArray.from_arrays(offsets, elements, mask=mask)
