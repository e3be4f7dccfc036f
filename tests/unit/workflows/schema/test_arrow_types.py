from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rankline.workflows.schema.arrow_types import plain_values

LISTS = pa.large_list(pa.string())
DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (pa.array([True, None]), pa.int64(), [1, None]),
        (pa.array([Decimal("0.5")]), pa.float64(), [0.5]),
        (pa.array([date(1970, 1, 2), None], pa.date32()), pa.int64(), [DAY, None]),
        (pa.array([date(1970, 1, 2)], pa.date64()), pa.int64(), [DAY]),
        (pa.array([datetime(1970, 1, 2)], pa.timestamp("s")), pa.int64(), [DAY]),
        (pa.array([DAY * 1000 + 999], pa.timestamp("ns", "Asia/Tokyo")), pa.int64(), [DAY]),
        (pa.array([True]).dictionary_encode(), pa.int64(), [1]),
        (pa.array([[True, None], None, []]), pa.large_list(pa.int64()), [[1, None], None, []]),
        (pa.array([[date(1970, 1, 2)]] * 3).slice(1), pa.large_list(pa.int64()), [[DAY], [DAY]]),
        (pa.array([1, 2], pa.int8()), pa.int8(), [1, 2]),
        (pa.array(["a", None]), pa.string(), ["a", None]),
        (pa.array([["a"], None]), pa.list_(pa.string()), [["a"], None]),
        (pa.array([b"x"]), pa.binary(), [b"x"]),
        (pa.array([b"x"], pa.binary_view()), pa.binary(), [b"x"]),
        (pa.array(["a", None], pa.string_view()), pa.string(), ["a", None]),
        (pa.DictionaryArray.from_arrays([0, None], pa.array(["a"], pa.string_view())), pa.string(), ["a", None]),
        (pa.array([["a", None], None, ["b"]], pa.list_(pa.string_view())), LISTS, [["a", None], None, ["b"]]),
        (pa.array([["a"], None, ["b"], []], pa.list_view(pa.string())).slice(1), LISTS, [None, ["b"], []]),
        (pa.array([["a"], None, ["b"]], pa.large_list_view(pa.string_view())), LISTS, [["a"], None, ["b"]]),
        (pa.array([[1.5], None], pa.list_(pa.float16())), pa.large_list(pa.float32()), [[1.5], None]),
        (pa.array([1.5, None], pa.float16()), pa.float32(), [1.5, None]),
        (pc.run_end_encode(pa.array([True, True, None])), pa.int64(), [1, 1, None]),
        (pc.run_end_encode(pa.array(["a", "a", "b"])).slice(1), pa.string(), ["a", "b"]),
    ],
)
def test_finer_types_become_numbers_and_others_stay(values: pa.Array, kind: pa.DataType, expected: list[Any]) -> None:
    plain = plain_values(values)
    assert plain.type == kind
    assert plain.to_pylist() == expected
