"""Casts of columns to the types used in training and requests: int64, float64, strings and lists.

The casts are the same for every file format, so that files to score are read like the training files.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankline.workflows.data.tabular.config import EPOCHS, ISO, ColumnConfig, LabelConfig
from rankline.workflows.schema.arrow_types import holds_lists, is_text, plain_values

TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.int64(),
    "timestamp": pa.int64(),
}
"""Column type → Arrow type after reading."""

NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
TRUE, FALSE = ("true", "t", "yes", "y", "1", "1.0"), ("false", "f", "no", "n", "0", "0.0")
_EXPECTED = {
    "string": "text",
    "int": "a 64-bit integer, as type int requires",
    "float": "a number",
    "bool": "true or false",
}


class ValueFaultError(Exception):
    def __init__(self, row: int, got: Any, expected: str) -> None:
        super().__init__(f"{got!r} is not {expected}")
        self.row, self.got, self.expected = row, got, expected


def type_of(column: ColumnConfig) -> pa.DataType:
    return pa.list_(TYPES[column.type]) if column.is_list else TYPES[column.type]


def typed_column(values: pa.Array, column: ColumnConfig) -> pa.Array:
    """Cast a column to the type in its config.

    Raises:
        ValueFaultError: a value does not fit.
    """
    if not column.is_list:
        return _typed(values, column)
    kind, expected = values.type, ""
    if pa.types.is_null(kind):
        return pa.nulls(len(values), type_of(column))
    if is_text(kind):
        expected = f", in a list separated by {column.separator!r}"
        values = pc.split_pattern(values, column.separator)
        texts = pc.utf8_trim_whitespace(values.flatten())
        values = _lists(values, pc.if_else(pc.equal(texts, ""), None, texts))
    elif not holds_lists(kind):
        raise ValueFaultError(0, str(kind), f"a list, as role {column.role} requires")
    try:
        typed = _lists(values, _typed(values.flatten(), column))
        return _vectors(typed, values, column.length) if column.role == "vector" else typed
    except ValueFaultError as fault:
        row = pc.list_parent_indices(values)[fault.row].as_py()
        raise ValueFaultError(row, fault.got, fault.expected + expected) from None


def _vectors(vectors: pa.Array, values: pa.Array, length: int) -> pa.Array:
    """Check that all non-empty vectors have the given length. Empty vectors count as missing."""
    lengths = pc.list_value_length(vectors)
    misfit = pc.and_(pc.greater(pc.list_value_length(values), 0), pc.not_equal(lengths, length))
    reject_misfits(values, misfit, f"a vector of {length} finite numbers")
    return vectors


def reject_misfits(values: pa.Array, misfit: pa.Array, expected: str) -> None:
    """Raise `ValueFaultError` for the first value that is a misfit."""
    if pc.any(misfit).as_py():
        row = pc.index(misfit, True).as_py()
        raise ValueFaultError(row, values[row].as_py(), expected)


def _lists(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """Rebuild lists with new elements, dropping missing elements and preserving missing lists."""
    parents = pc.list_parent_indices(lists)
    present = elements.is_valid()
    kept = parents.filter(present).to_numpy(zero_copy_only=False)
    counts = np.bincount(kept, minlength=len(lists))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    mask = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(offsets, elements.filter(present), mask=mask)


def _typed(values: pa.Array, column: ColumnConfig) -> pa.Array:
    typed = _converted(values, column)
    if typed.type != pa.float64():
        return typed
    return pc.if_else(_is_finite(typed), typed, None)  # NaN and infinities are missing


def _is_finite(numbers: pa.Array) -> pa.Array:
    return pc.is_finite(numbers.cast(pa.float32(), safe=False))  # models compute in float32


def _converted(values: pa.Array, column: ColumnConfig) -> pa.Array:
    """Cast values to the type of a column. Floats keep NaN and infinities, so that a label can reject the latter."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    of_text = is_text(values.type)
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), TYPES[column.type])
    if column.type == "timestamp":
        return _times(values, column.format, of_text)
    if column.type == "bool" and of_text:
        return _booleans(values)
    if column.type == "string":
        texts = _texts(values)
        return pc.if_else(pc.equal(texts, ""), None, texts)  # empty texts are missing in every format
    target = TYPES[column.type]
    expected = _EXPECTED[column.type]
    plain = _plain(values, expected)
    if of_text:
        plain = pc.utf8_trim_whitespace(plain)
    elif pa.types.is_floating(plain.type) and target != pa.float64():
        plain = pc.if_else(pc.is_finite(plain), plain, None)
    return _cast(plain, target, expected)


def _plain(values: pa.Array, expected: str) -> pa.Array:
    plain = plain_values(values)
    kind = plain.type
    known = (pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_large_string)
    if not any(is_kind(kind) for is_kind in known):
        raise ValueFaultError(0, str(kind), expected)
    return plain


def _cast(values: pa.Array, target: pa.DataType, expected: str) -> pa.Array:
    try:
        # Integers of 64 bits are rounded to the nearest float64.
        return values.cast(target, safe=target != pa.float64() or not pa.types.is_integer(values.type))
    except pa.ArrowException:
        if is_text(values.type) and target == pa.int64():
            whole = _whole_numbers(values)
            if not whole.equals(values):
                return _cast(whole, target, expected)
        row = _first_misfit(values, target)
        raise ValueFaultError(row, values[row].as_py(), expected) from None


def _whole_numbers(texts: pa.Array) -> pa.Array:
    """Normalize strings that represent integers, such as "36.0", "+36" and "3.6e1", to plain digits."""
    is_other = pc.match_substring_regex(texts, f"^{NUMBER}$")
    is_other = pc.and_(is_other, pc.invert(pc.match_substring_regex(texts, r"^-?\d+$")))
    changed = {text: _whole_number(text) for text in texts.filter(is_other).unique().to_pylist()}
    return pc.replace_with_mask(
        texts, pc.fill_null(is_other, False), pa.array(map(changed.get, texts.filter(is_other).to_pylist()), texts.type)
    )


def _whole_number(text: str) -> str:
    try:
        number = Decimal(text)
    except InvalidOperation:  # the exponent has too many digits
        return text
    is_whole = -(2**63) <= number < 2**63 and number == number.to_integral_value()
    return str(int(number)) if is_whole else text


def _first_misfit(values: pa.Array, target: pa.DataType) -> int:
    begin, end = 0, len(values)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            values.slice(begin, middle - begin).cast(target)
            begin = middle
        except pa.ArrowException:
            end = middle
    return begin


def _texts(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_decimal(kind):
        return values.cast(pa.string())
    plain = _plain(values, "text")
    texts = plain.cast(pa.string())
    if not pa.types.is_floating(plain.type):
        return texts
    # Nullable integers are floats in many files. Each value is converted independently, so that its text does not
    # depend on the other values in the batch.
    is_whole = pc.and_(pc.equal(plain, pc.trunc(plain)), pc.less(pc.abs(plain), 2.0**63))
    whole = pc.if_else(is_whole, plain, None).cast(pa.int64()).cast(pa.string())
    return pc.coalesce(whole, pc.if_else(pc.is_nan(plain), None, texts))


def _booleans(texts: pa.Array) -> pa.Array:
    small = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    place = pc.index_in(small, value_set=pa.array([*FALSE, *TRUE], small.type))
    reject_misfits(texts, pc.and_(small.is_valid(), place.is_null()), _EXPECTED["bool"])
    return pc.greater_equal(place, len(FALSE)).cast(pa.int64())


def _times(values: pa.Array, form: str, of_text: bool) -> pa.Array:
    if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
        return plain_values(values)
    if form in EPOCHS:
        numbers = _cast(_plain(values, "a number"), pa.float64(), f"a number in format {form}")
        return pc.round(pc.multiply(numbers, float(EPOCHS[form]))).cast(pa.int64())
    expected = "a date or time in ISO 8601 format" if form == ISO else f"a time written as {form}"
    if not of_text:
        raise ValueFaultError(0, str(values.type), expected)
    texts = pc.utf8_trim_whitespace(values)
    parsed = times_of(texts, form)
    reject_misfits(texts, pc.and_(texts.is_valid(), parsed.is_null()), expected)
    return parsed


_YEAR_1000 = -30_610_224_000_000_000


def times_of(texts: pa.Array, form: str) -> pa.Array:
    """Parse strings in the given format to microseconds since 1970, assuming UTC if they contain no time zone.
    Mismatches become null.
    """
    if form == ISO:
        return iso_times(texts)
    parsed = pc.strptime(texts, format=form, unit="us", error_is_null=True).cast(pa.int64())
    return pc.if_else(pc.less(parsed, _YEAR_1000), None, parsed)  # Arrow's %Y reads 24 as the year 24


def time_text(micros: int, form: str) -> str:
    """Return a time in microseconds since 1970 as a string in the given format."""
    if form in EPOCHS:
        return f"{micros / EPOCHS[form]:.16g}"
    time = datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=micros)
    if form != ISO:
        return time.strftime(form)
    return time.replace(tzinfo=None).isoformat().removesuffix("T00:00:00")


_ISO = r"^\d{4}-\d{2}-\d{2}([T ]\d{2}(:?\d{2}(:?\d{2}(\.\d{1,9})?)?)?)?"
_ZONE = r"(Z|[+-]\d{2}(:?\d{2})?)$"


def iso_times(texts: pa.Array) -> pa.Array:
    """Parse ISO 8601 strings, by default in UTC, to microseconds since 1970. Invalid strings become null."""
    is_time = pc.match_substring_regex(texts, f"{_ISO}({_ZONE})?$")
    zoned = pc.and_(is_time, pc.match_substring_regex(texts, f"[T ].*{_ZONE}"))
    plain = _parsed(pc.if_else(pc.and_(is_time, pc.invert(zoned)), texts, None), None)
    if not pc.any(zoned).as_py():
        return plain
    return pc.coalesce(plain, _parsed(pc.if_else(zoned, texts, None), "UTC"))


def _parsed(texts: pa.Array, zone: str | None) -> pa.Array:
    try:
        return texts.cast(pa.timestamp("us", zone)).cast(pa.int64())
    except pa.ArrowException:  # nanoseconds or an invalid day: parse one by one
        return pa.array([_one(text, zone) for text in texts], pa.int64())


def _one(text: pa.Scalar, zone: str | None) -> int | None:
    for unit in ("us", "ns"):
        try:
            found = text.cast(pa.timestamp(unit, zone)).cast(pa.timestamp("us", zone), safe=False)
        except pa.ArrowException:
            continue
        micros: int | None = found.value
        return micros
    return None


LABEL_TYPE = pa.float32()


def typed_label(values: pa.Array, label: LabelConfig) -> pa.Array:
    """Convert a label column to numbers.

    Raises:
        ValueFaultError: a value does not fit the task.
    """
    if label.classes:
        texts = pc.utf8_trim_whitespace(_texts(values)) if not pa.types.is_null(values.type) else values
        return _places(texts, label.classes, values).cast(LABEL_TYPE)
    is_binary = label.task == "binary"
    expected = (
        "0 or 1, true or false, yes or no, or one of two 'classes'"
        if is_binary
        else "a finite 32-bit number, as task regression requires"
    )
    of_text = is_text(values.type)
    try:
        if is_binary and of_text:
            return _booleans(values).cast(LABEL_TYPE)
        numbers = _converted(values, ColumnConfig(type="float", role="numeric"))
    except ValueFaultError as fault:
        raise ValueFaultError(fault.row, fault.got, expected) from None
    numbers = pc.if_else(pc.is_nan(numbers), None, numbers)
    fits = pc.or_(pc.equal(numbers, 0.0), pc.equal(numbers, 1.0)) if is_binary else _is_finite(numbers)
    reject_misfits(numbers, pc.invert(fits), expected)
    return numbers.cast(LABEL_TYPE, safe=False)


def _places(texts: pa.Array, classes: Sequence[str], values: pa.Array) -> pa.Array:
    places = pc.index_in(texts, value_set=pa.array(classes, texts.type))
    shown = ", ".join(classes[:6]) + (", …" if len(classes) > 6 else "")
    reject_misfits(values, pc.and_(texts.is_valid(), places.is_null()), f"one of its {len(classes)} classes: {shown}")
    return places
