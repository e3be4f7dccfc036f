from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from workflows.plain_values import plain_values

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
    ],
)
def test_finer_types_become_numbers_and_others_stay(values: pa.Array, kind: pa.DataType, expected: list[Any]) -> None:
    plain = plain_values(values)
    assert plain.type == kind
    assert plain.to_pylist() == expected
