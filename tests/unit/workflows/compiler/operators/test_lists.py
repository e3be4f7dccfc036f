from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rankline.workflows.core.errors import ConfigError, UnfitError
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.operators import NullToEmptyList, PaddedListSlice, VectorElements
from rankline.workflows.plan import ANY_WIDTH
from tests.oracles.lowering import fitted, padded, served, training_rows

GRAPHS = {
    "first two": lambda: ["keys", "floats"] >> ops.ListSlice(2),
    "last two": lambda: ["keys", "floats"] >> ops.ListSlice(-2),
    "middle": lambda: ["keys"] >> ops.ListSlice(1, 3),
    "middle from the end": lambda: ["keys"] >> ops.ListSlice(-3, -1),
    "from the end, up to": lambda: ["keys"] >> ops.ListSlice(-3, 2),
    "all": lambda: ["keys"] >> ops.ListSlice(0),
    "strings, then ids": lambda: ["words"] >> ops.ListSlice(1, 3) >> ops.Categorify(),
    "ids, then part": lambda: ["words", "keys"] >> ops.Categorify() >> ops.ListSlice(-2),
    "padded": lambda: ["keys", "floats"] >> PaddedListSlice(3, pad_value=7),
    "padded from the end": lambda: ["keys"] >> PaddedListSlice(-2),
    "padded strings": lambda: ["words"] >> PaddedListSlice(1, 3, pad_value="é") >> ops.Categorify(),
    "padded ids": lambda: ["words"] >> ops.Categorify() >> PaddedListSlice(3),
    "ValueCount": lambda: ["keys", "words"] >> ops.Categorify() >> ops.ValueCount(),
    "vectors": lambda: (
        ["keys", "floats"]
        >> PaddedListSlice(3)
        >> NullToEmptyList()
        >> VectorElements({"keys": 3, "floats": 3})
        >> ops.FillMissing(0)
    ),
    "NullToEmptyList": lambda: ["keys"] >> NullToEmptyList() >> ops.Categorify(),
}


@pytest.mark.parametrize(
    ("graph", "width"),
    [
        (lambda: ["keys"] >> ops.ListSlice(-2), 2),
        (lambda: ["keys"] >> ops.ListSlice(1, 4) >> ops.Categorify(), 3),
        (lambda: ["keys"] >> ops.Categorify() >> PaddedListSlice(5), 5),
        (lambda: ["keys"] >> ops.ListSlice(0), ANY_WIDTH),
        (lambda: ["keys"] >> ops.Categorify(), ANY_WIDTH),
    ],
)
def test_width_of_a_sliced_list_is_known_before_a_request(tmp_path: Any, graph: Any, width: int) -> None:
    _, plan = fitted(tmp_path, training_rows(), graph)
    assert plan.columns[0].spec.width == width
    wide = plan.run({"keys": padded([[1, 2, 3, 1, 2, 3, 1]], "int64")})["keys"]
    assert wide.values.shape[1] == (width if width != ANY_WIDTH else 7)  # type: ignore[union-attr]


def test_missing_lists_become_empty_before_or_after_they_are_encoded(tmp_path: Any) -> None:
    request = pd.DataFrame({"keys": pd.Series([[1], None], dtype=object)})
    for graph in (
        lambda: ["keys"] >> NullToEmptyList() >> ops.Categorify(),
        lambda: ["keys"] >> ops.Categorify() >> NullToEmptyList(),
    ):
        _, plan = fitted(tmp_path / str(id(graph)), training_rows(), graph)
        assert [len(row) for row in served(plan, request)["keys"]] == [1, 0]


def test_vector_of_another_length_is_refused(tmp_path: Any) -> None:
    rows = pd.DataFrame({"keys": pd.Series([[1, 2], [3, 4], []], dtype=object)})
    operator = VectorElements({"keys": 2})
    _, plan = fitted(tmp_path, rows, lambda: ["keys"] >> operator >> ops.FillMissing(0))
    assert served(plan, rows)["keys_1"].tolist() == [2, 4, 0]
    for refuse in (partial(served, plan), partial(operator.transform, nvt.ColumnSelector(["keys"]))):
        with pytest.raises(UnfitError, match="column 'keys' has a list of 1 values, expected 2"):
            refuse(pd.DataFrame({"keys": pd.Series([[1, 2], [3]], dtype=object)}))


REFUSED = [
    (lambda: ["keys"] >> ops.ListSlice(3, pad=True), r"ListSlice\(pad=True\).*PaddedListSlice"),
    (
        lambda: ["words"] >> PaddedListSlice(3),
        "PaddedListSlice on 'words': pad_value 0 does not match the element type of the lists",
    ),
    (
        lambda: ["small"] >> NullToEmptyList(),
        "NullToEmptyList on 'small': the column contains one int64 per row, expected lists",
    ),
    (lambda: ["keys"] >> ops.Bucketize([1]), "Bucketize on 'keys': the column contains lists, expected numbers"),
]


@pytest.mark.parametrize(("start", "end"), [(0, None), (2, -1)])
def test_padding_needs_a_longest_slice(start: int, end: int | None) -> None:
    with pytest.raises(ConfigError, match="needs a maximum length of 1 to 65536 values"):
        PaddedListSlice(start, end)


def test_padding_keeps_the_dtype_of_the_lists() -> None:
    frame = pd.DataFrame({"x": [np.array([1, 2], np.int32), np.array([], np.int32)]})
    longer = PaddedListSlice(3, pad_value=9).transform(nvt.ColumnSelector(["x"]), frame)["x"]
    assert [(row.dtype.name, row.tolist()) for row in longer] == [("int32", [1, 2, 9]), ("int32", [9, 9, 9])]
