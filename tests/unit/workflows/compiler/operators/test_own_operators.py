"""Dates, known ids and attributes of items: what their compiled forms do beyond what NVTabular does."""

from typing import Any

import numpy as np
import pandas as pd

from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.dates import PARTS
from rankline.workflows.nvt.operators import (
    DateParts,
    ItemAttributes,
    KnownIds,
    NullToEmptyList,
    OrderedCategorify,
    SameLengths,
    SharedCategorify,
)
from rankline.workflows.plan import Column
from tests.oracles.lowering import fitted, served, training_rows

DATES: dict[str, Any] = {
    "parts": lambda: ["key", "maybe"] >> DateParts({"key": list(PARTS), "maybe": ["hour", "year"]}),
    "categories": lambda: (
        ["key", "maybe"] >> DateParts({"key": ["month"], "maybe": ["weekday"]}) >> OrderedCategorify()
    ),
    "numbers": lambda: ["key", "float", "flag", "word"] >> OrderedCategorify(freq_threshold=8),
    "scaled": lambda: ["key"] >> DateParts({"key": ["day_of_year"]}) >> ops.Normalize("float32") >> ops.FillMissing(0),
}


KNOWN_IDS = {
    "single ids": lambda: ["key", "small", "narrow"] >> KnownIds({"key": 5, "small": 1, "narrow": 2**40}),
    "ids that may be missing": lambda: ["maybe"] >> KnownIds({"maybe": 3}),
    "features of one history": lambda: (
        (["keys"] >> NullToEmptyList() >> ops.ListSlice(-3)) + (["floats"] >> NullToEmptyList()) >> SameLengths("keys")
    ),
    "the latest ids": lambda: ["keys"] >> NullToEmptyList() >> ops.ListSlice(-2) >> KnownIds({"keys": 4}),
}


def test_ids_out_of_range_become_padding(tmp_path: Any) -> None:
    _, plan = fitted(tmp_path, training_rows(), KNOWN_IDS["the latest ids"])
    request = pd.DataFrame({"keys": pd.Series([[1, 2, 3], [4, -1], [0], None], dtype=object)})
    assert [row.tolist() for row in served(plan, request)["keys"]] == [[2, 3], [0, 0], [0], []]


def test_history_features_have_equal_lengths(tmp_path: Any) -> None:
    _, plan = fitted(tmp_path, training_rows(), KNOWN_IDS["features of one history"])
    keys = [[1, 2, 3, 4], [5], [], [6, 7], None, [8]]
    floats = [[0.5, 1.5, 2.5, 3.5], [4.5, 5.5], [6.5], [7.5], [8.5], None]
    request = pd.DataFrame({"keys": pd.Series(keys, dtype=object), "floats": pd.Series(floats, dtype=object)})
    answer = {name: [row.tolist() for row in rows] for name, rows in served(plan, request).items()}
    assert answer["keys"] == [[2, 3, 4], [5], [], [6, 7], [], [8]]
    assert answer["floats"] == [[1.5, 2.5, 3.5], [5.5], [], [0.0, 7.5], [], [0.0]]
    alike = pd.DataFrame({"keys": pd.Series([[1], []], dtype=object), "floats": pd.Series([[2.0], []], dtype=object)})
    assert [row.tolist() for row in served(plan, alike)["floats"]] == [[2.0], []]


def test_missing_id_is_padding_whatever_stands_for_it() -> None:
    frame = pd.DataFrame({"a": [1.0, np.nan, 9.0], "b": pd.Series([2, None, 3], dtype=object)})
    made = KnownIds({"a": 5, "b": 3}).transform(nvt.ColumnSelector(["a", "b"]), frame)
    assert made.to_dict("list") == {"a": [1, 0, 0], "b": [2, 0, 0]}
    assert {dtype.name for dtype in made.dtypes} == {"int64"}


NUMBERED = pd.DataFrame(
    {
        "key": [1, 2, 3, 2**53 + 1, -(2**63), 0],
        "brand": ["p", None, "é", "p", "a\0", ""],
        "size": [5, 6, 7, 8, 9, 10],
        "cost": [1.5, np.nan, 2.5, -0.0, 1e300, 0.1],
    }
)
NAMED = NUMBERED.assign(key=["a", "é", "", "a\0", "long " * 40, "日本"]).rename(columns={"key": "word"})
SMALL = NUMBERED.iloc[:3].rename(columns={"key": "maybe"})


def named(**fill: Any) -> Any:
    return ["word", "words"] >> ItemAttributes(NAMED, "word", fill)


def numbered(**fill: Any) -> Any:
    return ["key", "keys"] >> ItemAttributes(NUMBERED, "key", fill)


ITEM_ATTRIBUTES = {
    "numbers": lambda: numbered(size=-1, cost=0.5),
    "strings, then ids": lambda: numbered(brand="none") >> SharedCategorify({"brands": "brand"}),
    "items are strings": lambda: named(brand="none") >> SharedCategorify({"brands": "brand"}),
    "numbers of strings": lambda: named(size=0),
    "numbers, then ids": lambda: named(size=0) >> SharedCategorify({"sizes": "size"}, freq_threshold=3, num_buckets=2),
    "an item that may be missing": lambda: ["maybe"] >> ItemAttributes(SMALL, "maybe", {"size": 0, "cost": 1}),
    "the latest only": lambda: (
        ["keys"] >> ops.ListSlice(-2) >> ItemAttributes(NUMBERED, "key", {"brand": "?"}) >> SharedCategorify({})
    ),
    "one vocabulary": lambda: ["key", "keys"] >> SharedCategorify({"keys": "key"}),
    "one vocabulary of strings": lambda: ["word", "words"] >> SharedCategorify({"words": "word"}),
    "one vocabulary, hashed": lambda: (
        ["word", "words"] >> SharedCategorify({"words": "word"}, freq_threshold=9, num_buckets=3)
    ),
}


def test_item_attributes_share_one_lookup_of_ids(tmp_path: Any) -> None:
    def graph() -> Any:
        ids = numbered(brand="none", size=0) >> SharedCategorify({"brands": "brand", "sizes": "size"})
        return ids + (numbered(cost=0.0) >> ops.Rename(postfix="_plain"))

    _, plan = fitted(tmp_path, training_rows(), graph)
    assert [column.name for column in plan.columns if isinstance(column, Column)] == [
        "brand", "size", "brands", "sizes", "cost_plain", "costs_plain",
    ]  # fmt: skip
    assert [index.input for index in plan.indexes].count("key") <= 2  # one for each operator
    assert plan.steps == ()


def test_missing_history_has_no_attributes(tmp_path: Any) -> None:
    request = pd.DataFrame({"keys": pd.Series([[1, 77], None], dtype=object)})
    _, plan = fitted(
        tmp_path,
        training_rows(),
        lambda: ["keys"] >> NullToEmptyList() >> ItemAttributes(NUMBERED, "key", {"size": -1}),
    )
    assert [row.tolist() for row in served(plan, request)["sizes"]] == [[5, -1], []]


GRAPHS = {**DATES, **KNOWN_IDS, **ITEM_ATTRIBUTES}
REFUSED = [
    (lambda: ["floats"] >> SameLengths("keys"), r"SameLengths on \['floats'\]: 'keys' is not among these columns"),
    (lambda: ["word"] >> KnownIds({"word": 2}), "KnownIds on 'word': the column contains strings, expected numbers"),
    (
        lambda: ["word"] >> ItemAttributes(NUMBERED.rename(columns={"key": "word"}), "word", {"size": 0}),
        "ItemAttributes on 'word': the column is object, but the known keys are int64",
    ),
]
