"""Values of any type as a table has them, and what is refused."""

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from rankline.workflows.data.tabular.cast import ValueFaultError, typed_column, typed_label
from rankline.workflows.data.tabular.config import ColumnConfig, LabelConfig

NOON = 12 * 3_600_000_000
DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("values", "config", "expected"),
    [
        (pa.array([1, None, 3], pa.int8()), {"type": "int"}, [1, None, 3]),
        (pa.array([2**63 - 1, None], pa.uint64()), {"type": "int"}, [2**63 - 1, None]),
        (pa.array(["7", " 8 ", None]), {"type": "int"}, [7, 8, None]),
        (pa.array(["36.0", None, "7"]), {"type": "int"}, [36, None, 7]),  # as pandas writes whole numbers with gaps
        (pa.array([1.0, float("nan"), float("inf")]), {"type": "float", "role": "numeric"}, [1.0, None, None]),
        (pa.array(["1.5", "-2e3", "inf"]), {"type": "float", "role": "numeric"}, None),
        (pa.array([Decimal("1.25"), None]), {"type": "float", "role": "numeric"}, [1.25, None]),
        (pa.array([True, None, False]), {"type": "bool"}, [1, None, 0]),
        (pa.array(["Yes", "no", None, "T"]), {"type": "bool"}, [1, 0, None, 1]),
        (pa.array(["a", None, "a"]).dictionary_encode(), {}, ["a", None, "a"]),
        (pa.array([5, None]), {}, ["5", None]),
        (pa.array([5.0, None]), {}, ["5", None]),
        (pa.array([36.0, 36.5, float("nan"), 1e300]), {}, ["36", "36.5", None, "1e+300"]),  # each by itself
        (pa.array([2.0**62, -(2.0**62)]), {}, ["4611686018427387904", "-4611686018427387904"]),
        (pa.array([date(2024, 1, 2)]), {}, ["2024-01-02"]),
        (pa.nulls(2), {}, [None, None]),
        (pa.array(["a| b||", "", None]), {"role": "multihot"}, [["a", "b"], [], None]),
        (pa.array([["x", None, "y"], [], None]), {"role": "multihot"}, [["x", "y"], [], None]),
        (pa.array([[1, 2], None], pa.large_list(pa.int16())), {"role": "multihot", "type": "int"}, [[1, 2], None]),
    ],
)
def test_values_become_those_of_the_type(values: pa.Array, config: dict[str, Any], expected: list[Any] | None) -> None:
    column = ColumnConfig(**config)
    if expected is None:  # a text that is no finite number
        assert typed_column(values, column).to_pylist() == [1.5, -2000.0, None]
    else:
        assert typed_column(values, column).to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "form", "expected"),
    [
        (pa.array(["1970-01-02", None]), "iso", [DAY, None]),
        (pa.array(["1970-01-01T12:00:00Z", "1970-01-01 14:00:00+02:00"]), "iso", [NOON, NOON]),
        (pa.array(["1970-01-01 12:00", "1970-01-01 12:00:00.000001"]), "iso", [NOON, NOON + 1]),
        (pa.array(["1970-01-01 12:00:00.123456789"]), "iso", [NOON + 123456]),
        (pa.array(["2/1/1970"]), "%d/%m/%Y", [DAY]),
        (pa.array([43200, None]), "epoch_s", [NOON, None]),
        (pa.array(["43200000"]), "epoch_ms", [NOON]),
        (pa.array([date(1970, 1, 2)]), "iso", [DAY]),
        (pa.array([datetime(1970, 1, 1, 12)], pa.timestamp("ns")), "iso", [NOON]),
        (pa.array([datetime(1970, 1, 1, 12, tzinfo=timezone.utc)], pa.timestamp("s", "Asia/Tokyo")), "iso", [NOON]),
        (pa.array(["0900-01-01"]), "iso", [-33765897600000000]),
    ],
)
def test_times_become_microseconds_in_utc(values: pa.Array, form: str, expected: list[int | None]) -> None:
    column = ColumnConfig(type="timestamp", role="timestamp", format=form, parts=("hour",))
    assert typed_column(values, column).to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "config", "row", "expected"),
    [
        (pa.array(["1", "x", "3"]), {"type": "int"}, 1, "a whole number"),
        (pa.array([1.0, 2.5]), {"type": "int"}, 1, "a whole number"),
        (pa.array(["1.0", "2.50"]), {"type": "int"}, 1, "a whole number"),
        (pa.array([1, 2**64 - 1], pa.uint64()), {"type": "int"}, 1, "64 bits"),
        (pa.array(["1", "2", "n/a"]), {"type": "float", "role": "numeric"}, 2, "a number"),
        (pa.array(["yes", "maybe"]), {"type": "bool"}, 1, "true or false"),
        (pa.array([b"\x00"]), {}, 0, "text"),
        (pa.array([{"a": 1}]), {"type": "int"}, 0, "a whole number"),
        (pa.array([["a"]]), {}, 0, "text"),
        (pa.array([1]), {"role": "multihot"}, 0, "a list"),
        (pa.array([["1"], ["2", "x"]]), {"role": "multihot", "type": "int"}, 1, "a whole number"),
        (
            pa.array(["1|2", "3,4"]),
            {"role": "multihot", "type": "int"},
            1,
            "as type int has it, in a list separated by '|'",
        ),
        (
            pa.array(["2024-01-01", "01/02/2024"]),
            {"type": "timestamp", "role": "timestamp", "parts": ("day",)},
            1,
            "ISO 8601",
        ),
        (pa.array(["2024-02-30"]), {"type": "timestamp", "role": "timestamp", "parts": ("day",)}, 0, "ISO 8601"),
        (pa.array([5]), {"type": "timestamp", "role": "timestamp", "parts": ("day",)}, 0, "ISO 8601"),
    ],
)
def test_what_does_not_fit_is_found_by_its_row(
    values: pa.Array, config: dict[str, Any], row: int, expected: str
) -> None:
    with pytest.raises(ValueFaultError) as fault:
        typed_column(values, ColumnConfig(**config))
    assert fault.value.row == row
    assert expected in fault.value.expected


@pytest.mark.parametrize(
    ("values", "config", "expected"),
    [
        (pa.array([0, 1, None]), {}, [0, 1, None]),
        (pa.array([True, False]), {}, [1, 0]),
        (pa.array(["yes", "no"]), {}, [1, 0]),
        (pa.array(["<=50K", ">50K"]), {"classes": ("<=50K", ">50K")}, [0, 1]),
        (pa.array(["c", " a", None]), {"task": "multiclass", "classes": ("a", "b", "c")}, [2, 0, None]),
        (pa.array([7.0, 9.0]), {"task": "multiclass", "classes": ("7", "8", "9")}, [0, 2]),
        (pa.array(["1.5", "2"]), {"task": "regression"}, [1.5, 2.0]),
    ],
)
def test_labels_become_numbers(values: pa.Array, config: dict[str, Any], expected: list[Any]) -> None:
    assert typed_label(values, LabelConfig(**config)).to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "config", "row", "expected"),
    [
        (pa.array([0, 1, 2]), {}, 2, "0 or 1"),
        (pa.array(["yes", "no", "perhaps"]), {}, 2, "0 or 1"),
        (pa.array(["a", "z"]), {"task": "multiclass", "classes": ("a", "b")}, 1, "one of its 2 classes: a, b"),
        (pa.array(["1", "many"]), {"task": "regression"}, 1, "a number"),
    ],
)
def test_a_label_that_does_not_fit_its_task_is_refused(
    values: pa.Array, config: dict[str, Any], row: int, expected: str
) -> None:
    with pytest.raises(ValueFaultError) as fault:
        typed_label(values, LabelConfig(**config))
    assert fault.value.row == row
    assert expected in fault.value.expected
