from typing import Any

import numpy as np

from rankline.workflows.nvt.compat import ops
from rankline.workflows.nvt.operators import Bucketize, Finite
from tests.oracles.lowering import fitted, training_rows

NUMBERS = ["key", "narrow", "float", "float32", "maybe"]
LISTS = ["keys", "floats"]
# NVTabular's NormalizeMinMax overflows on integers whose range does; `float` reaches from -3.25 to 1e300.
BOUNDED = ["small", "maybe", "float", "float32", "narrow"]
# Where True, pandas may hold the same numbers in float64.
GRAPHS: dict[str, tuple[Any, bool]] = {
    "FillMissing": (lambda: ["float", "float32", "whole"] >> ops.FillMissing(2.5), False),
    "FillMissing, binary": (lambda: ["float", "float32"] >> ops.FillMissing(-1, add_binary_cols=True), False),
    "FillMissing of integers": (lambda: ["maybe"] >> ops.FillMissing(add_binary_cols=True), True),
    "FillMissing rounded": (lambda: ["float32"] >> ops.FillMissing(0.1), True),
    "FillMissing of strings": (lambda: ["word", "other"] >> ops.FillMissing("é") >> ops.Categorify(), False),
    "FillMedian": (lambda: ["float", "maybe"] >> ops.FillMedian(add_binary_cols=True), True),
    "Clip": (lambda: ["key", "narrow", "float", "float32"] >> ops.Clip(min_value=-3, max_value=2), False),
    "Clip below": (lambda: ["float", "key"] >> ops.Clip(min_value=-1e30), False),
    "Clip above": (lambda: ["float", "narrow"] >> ops.Clip(max_value=300), False),
    "Clip rounded": (lambda: ["float32"] >> ops.Clip(min_value=0.3), True),
    "Finite": (lambda: ["float", "float32", "small"] >> Finite(), False),
    "LogOp": (lambda: [*NUMBERS, *LISTS] >> ops.LogOp(), False),
    "Normalize": (lambda: [*NUMBERS, *LISTS] >> ops.Normalize(), False),
    "Normalize, float32": (lambda: [*NUMBERS, *LISTS] >> ops.Normalize(out_dtype="float32"), False),
    "NormalizeMinMax": (lambda: BOUNDED >> ops.NormalizeMinMax(), False),
    "NormalizeMinMax of integers": (lambda: ["small", "maybe"] >> ops.NormalizeMinMax(out_dtype="float32"), False),
    "NormalizeMinMax of one value": (
        lambda: ["small", "float32"] >> ops.Clip(min_value=7, max_value=7) >> ops.NormalizeMinMax(),
        False,
    ),
    "Bucketize": (lambda: NUMBERS >> ops.Bucketize([-3, 0, 1.5]), False),
    "Bucketize descending": (lambda: ["float", "key"] >> Bucketize({"float": [3, 1, 1, -2], "key": [2]}), False),
    "ReduceDtypeSize": (lambda: ["small", "float", "float32"] >> ops.ReduceDtypeSize(), False),
    "chain": (
        lambda: (
            ["float", "price", "key"]
            >> ops.FillMissing(1)
            >> ops.Clip(min_value=0)
            >> ops.LogOp()
            >> ops.Normalize()
            >> ops.Rename(postfix="_normal")
        ),
        False,
    ),
    "categories of bins": (lambda: ["float"] >> ops.Bucketize([0, 1, 2]) >> ops.Categorify(), False),
}


REFUSED: list[tuple[Any, str]] = [
    (lambda: ["small"] >> ops.FillMissing(0.5), r"FillMissing on 'small': cannot fill int64 with 0\.5\. Fill with"),
    (lambda: ["narrow"] >> ops.FillMissing(1000), "narrow': cannot fill int8"),
    (lambda: ["word"] >> ops.FillMissing(0) >> ops.Rename(postfix="_"), "FillMissing on 'word': cannot fill"),
    (
        lambda: ["keys"] >> ops.FillMissing(0),
        "FillMissing on 'keys': the column contains lists, expected single values. Use NullToEmptyList",
    ),
    (lambda: ["small"] >> ops.Clip(min_value=0.5), "Clip on 'small': cannot fill int64"),
    (lambda: ["word"] >> ops.Rename(postfix="_"), "column 'word_' contains strings.*Add Categorify"),
]


def test_served_column_keeps_its_dtype(tmp_path: Any) -> None:
    _, plan = fitted(tmp_path, training_rows(), lambda: ["maybe", "float32"] >> ops.FillMissing(3))
    answer = plan.run(
        {"maybe": np.array([1, 2]), "float32": np.array([1, np.nan], dtype=np.float32)},
        {"maybe": np.array([True, False])},
    )
    assert [(column.dtype.name, column.tolist()) for column in answer.values()] == [  # type: ignore[union-attr]
        ("int64", [1, 3]),
        ("float32", [1.0, 3.0]),
    ]
