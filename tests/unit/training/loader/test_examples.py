from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from training.loader.examples import Layout, decode, list_kind, serialize
from workflows.errors import DataError
from workflows.feature_spec import Feature
from workflows.lists import Ragged

PATH, WHERE = Path("rows.parquet"), "rows.tfrecord, record 3"
COUNT = Feature(name="count", dtype="int64")
PRICE = Feature(name="price", dtype="float32")
GENRE = Feature(name="genre", dtype="int32", cardinality=9, embedding_dim=2)


def one(batch: dict[str, Any], *features: Feature, prebatch: int = 1) -> list[bytes]:
    return list(serialize(batch, features, prebatch=prebatch, path=PATH))


def contents(records: list[bytes]) -> list[dict[str, list[Any]]]:
    """What protobuf reads; floats as text, since NaN is not equal to itself."""
    examples = [tf.train.Example.FromString(record).features.feature for record in records]
    return [
        {
            name: [str(value) for value in feature.float_list.value] or list(feature.int64_list.value)
            for name, feature in example.items()
        }
        for example in examples
    ]


def by_protobuf(columns: dict[str, list[Any]]) -> bytes:
    lists = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=values))
        if name == "price"
        else tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for name, values in columns.items()
    }
    message = tf.train.Example(features=tf.train.Features(feature=lists))
    serialized: bytes = message.SerializeToString(deterministic=True)
    return serialized


@given(
    rows=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(width=32)), min_size=1, max_size=30),
    prebatch=st.integers(1, 40),
)
def test_records_hold_what_protobuf_writes(rows: list[tuple[int, float]], prebatch: int) -> None:
    counts, prices = map(list, zip(*rows, strict=True))
    batch = {"count": np.array(counts), "price": np.array(prices, np.float32)}
    expected = [
        by_protobuf({"price": prices[start : start + prebatch], "count": counts[start : start + prebatch]})
        for start in range(0, len(rows), prebatch)
    ]
    assert contents(one(batch, PRICE, COUNT, prebatch=prebatch)) == contents(expected)


@pytest.mark.parametrize("prebatch", [1, 3, 9_000])
def test_lists_of_any_length_are_written_in_blocks_of_records(prebatch: int) -> None:
    rows = [list(range(number % 4)) for number in range(9_000)]
    feature = Feature(name="ä/tags", dtype="int64", is_list=True, max_length=3)
    expected = [rows[start : start + prebatch] for start in range(0, len(rows), prebatch)]
    written = contents(one({feature.name: Ragged.of_rows(rows)}, feature, prebatch=prebatch))
    assert [record["ä/tags"] for record in written] == [list(chain(*block)) for block in expected]
    if prebatch > 1:
        assert [record["ä/tags__nnzs"] for record in written] == [list(map(len, block)) for block in expected]


@pytest.mark.parametrize(
    ("column", "feature", "message"),
    [
        (np.array([0.5]), COUNT, "'count' is float64, the feature spec says int64"),
        (np.array([[1, 2]]), COUNT, "'count' does not hold single values"),
        (np.array([1]), Feature(name="count", dtype="int64", is_list=True, max_length=1), "does not hold lists"),
        (np.array([1]), Feature(name="count", dtype="str"), "'count' is str, expected whole or float"),
    ],
)
def test_a_column_that_does_not_fit_its_feature_is_refused(column: Any, feature: Feature, message: str) -> None:
    with pytest.raises(DataError, match=message):
        one({"count": column}, feature)


def layout(*features: Feature, block_rows: int = 1, has_nnzs: bool = False) -> Layout:
    return Layout(features=features, counted=features[0], block_rows=block_rows, has_nnzs=has_nnzs)


PRICES = Feature(name="price", dtype="int8", is_list=True, max_length=1)
TAGS = Feature(name="tags", dtype="int64", is_list=True, max_length=3)


@pytest.mark.parametrize(
    ("expected", "columns", "message"),
    [
        (layout(COUNT, PRICE), {"count": [1]}, r"lacks feature 'price'. Available: \['count'\]"),
        (layout(COUNT), {"count": [1, 2]}, "'count' has 2 values, expected 1"),
        (layout(Feature(name="count", dtype="float32")), {"count": [1]}, "'count' is int64_list, expected float_list"),
        (layout(COUNT, PRICES), {"count": [1], "price": [1]}, "'price' is float_list"),
        (layout(COUNT, GENRE), {"count": [1], "genre": [9]}, "'genre' holds the id 9, the feature spec says 0 to 8"),
        (layout(COUNT, GENRE), {"count": [1], "genre": [-1]}, "'genre' holds the id -1"),
        (layout(COUNT, PRICE, block_rows=2), {"count": [1, 2], "price": [1]}, "'price' .* 1 values, expected 2"),
        (layout(COUNT, TAGS, has_nnzs=True), {"count": [1, 2], "tags": [5]}, "lacks feature 'tags__nnzs'"),
        (layout(COUNT, TAGS, block_rows=2), {"count": [1, 2], "tags": [5]}, "'tags' .* 1 values for 2 rows, expected"),
        (
            layout(COUNT, TAGS, has_nnzs=True),
            {"count": [1, 2], "tags": [5], "tags__nnzs": [1, 1]},
            "'tags' has 1 values, expected 2",
        ),
    ],
)  # fmt: skip
def test_the_parser_refuses_what_check_explains(expected: Layout, columns: dict[str, list[Any]], message: str) -> None:
    record = by_protobuf(columns)
    with pytest.raises(tf.errors.InvalidArgumentError):
        expected.parse(tf.constant([record]))
    with pytest.raises(DataError, match=message):
        expected.check(decode(record, WHERE), WHERE)


def test_lists_of_a_block_without_their_numbers_have_one_length() -> None:
    blocks = [{"count": [1, 2], "tags": [5, 6, 7, 8]}, {"count": [3], "tags": [9, 10]}, {"count": [4, 5], "tags": []}]
    parsed = layout(COUNT, TAGS, block_rows=2).parse(tf.constant([by_protobuf(block) for block in blocks]))
    assert parsed["tags__nnzs"].numpy()[:, 0].tolist() == [2, 2, 2, 0, 0]
    assert parsed["tags__values"].numpy()[:, 0].tolist() == [5, 6, 7, 8, 9, 10]
    for block in blocks:
        layout(COUNT, TAGS, block_rows=2).check(decode(by_protobuf(block), WHERE), WHERE)


FILLED = [
    Feature(name="price", dtype="float32", null_fill=0.5),
    Feature(name="genre", dtype="int32", cardinality=9, embedding_dim=2, null_fill=3),
]


@pytest.mark.parametrize("fill", FILLED)
@pytest.mark.parametrize("block_rows", [1, 2])
def test_what_a_record_lacks_is_filled(fill: Feature, block_rows: int) -> None:
    number: Any = 0.25 if fill.name == "price" else 8
    records = [
        {"count": [1] * block_rows, fill.name: [number] * block_rows},
        {"count": [2] * block_rows},
        {"count": [3] * block_rows, fill.name: []},
    ]
    expected = layout(COUNT, fill, block_rows=block_rows)
    parsed = expected.parse(tf.constant([by_protobuf(record) for record in records]))[fill.name]
    assert parsed.numpy()[:, 0].tolist() == [number] * block_rows + [fill.null_fill] * 2 * block_rows
    for record in records:
        expected.check(decode(by_protobuf(record), WHERE), WHERE)


@pytest.mark.parametrize("null_fill", [0.5, float("nan"), float("inf")])
def test_a_null_fill_that_is_no_whole_number_does_not_fill_whole_numbers(null_fill: float) -> None:
    with pytest.raises(DataError, match=f"'count' is int64, which cannot hold its null_fill, {null_fill}"):
        layout(PRICE, Feature(name="count", dtype="int64", null_fill=null_fill))


def test_a_block_must_have_the_column_that_counts_its_rows() -> None:
    counted = Feature(name="count", dtype="int64", null_fill=1)
    with pytest.raises(DataError, match="record 3 lacks feature 'count'"):
        layout(counted, PRICE, block_rows=2).check(decode(by_protobuf({"price": [0.5, 1.5]}), WHERE), WHERE)


def test_bytes_that_are_no_example_are_refused() -> None:
    with pytest.raises(DataError, match=r"rows\.tfrecord, record 3 is not a tf.train.Example"):
        decode(b"\xff\xff", WHERE)


@pytest.mark.parametrize(
    ("dtype", "kind"), [("bool", "int64_list"), ("uint8", "int64_list"), ("float64", "float_list")]
)
def test_the_dtype_says_which_list_holds_a_feature(dtype: str, kind: str) -> None:
    assert list_kind(Feature(name="x", dtype=dtype)) == kind
