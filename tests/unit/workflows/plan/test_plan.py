import os
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.core.errors import ArtifactError, RequestError
from rankline.workflows.nvt.keys import bucket_of
from rankline.workflows.plan import ANY_WIDTH, Column, ColumnSpec, Computed, KeyIndex, StepCall, TransformPlan
from rankline.workflows.plan.columns import Vector
from rankline.workflows.plan.steps import Arithmetic, Fill, NullToEmpty, Take
from rankline.workflows.schema.ragged import Padded
from rankline.workflows.schema.tensor_names import MISSING_LIST

INT64 = st.integers(-(2**63), 2**63 - 1)
NEAR = st.integers(-50, 50)
WORDS = st.binary(max_size=20) | st.sampled_from([b"", b"\0", b"a\0", b"a", b"x" * 127, b"x" * 128, b"x" * 300])


def strings(values: list[bytes]) -> pa.LargeBinaryArray:
    return pa.array(values, pa.large_binary())


def assert_found(known: list[Any], asked: list[Any], num_unknown: int, array: Callable[[list[Any]], Any]) -> None:
    """Known keys have their rows, behind those that unknown ones share."""
    asked = asked + known
    expected = [
        num_unknown + known.index(key) if key in known else int(bucket_of(array([key]), num_unknown)[0])
        for key in asked
    ]
    assert KeyIndex.build("key", array(known), num_unknown).rows_of(array(asked)).tolist() == expected


@given(
    st.lists(NEAR | INT64, max_size=20, unique=True), st.lists(NEAR | INT64, max_size=20), st.sampled_from([1, 2, 7])
)
def test_index_finds_keys_and_deals_out_unknown_ones(known: list[int], asked: list[int], num_unknown: int) -> None:
    assert_found(known, asked, num_unknown, partial(np.array, dtype=np.int64))


@given(st.lists(WORDS, max_size=20, unique=True), st.lists(WORDS, max_size=20), st.sampled_from([1, 3]))
def test_index_of_strings_finds_them_byte_by_byte(known: list[bytes], asked: list[bytes], num_unknown: int) -> None:
    assert_found(known, asked, num_unknown, strings)


@given(st.lists(st.floats(allow_nan=False), max_size=20, unique=True), st.lists(st.floats(), max_size=20))
def test_index_of_floats_knows_one_zero_and_takes_nan_for_missing(known: list[float], asked: list[float]) -> None:
    index = KeyIndex.build("key", np.array(known), 1, missing_row=99)
    asked = [*asked, *known, 0.0, -0.0, float("nan")]
    expected = [99 if key != key else known.index(key) + 1 if key in known else 0 for key in asked]
    assert index.rows_of(np.array(asked)).tolist() == expected


def test_string_that_shares_the_hash_of_a_known_one_stays_unknown() -> None:
    index = KeyIndex.build("key", strings([b"a", b"b"]))
    renamed = KeyIndex(**{**vars(index), "strings": strings([b"a", b"c"])})
    assert renamed.rows_of(strings([b"a", b"b"])).tolist() == [1, 0]


@pytest.mark.parametrize(("num_keys", "seed"), [(1, 0), (2, 1), (1000, 2), (100_000, 3)])
def test_sparse_keys_are_found_in_large_indexes(num_keys: int, seed: int) -> None:
    keys = np.unique(np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, num_keys))
    index = KeyIndex.build("key", keys)
    assert index.hashes is not None or num_keys == 1
    np.testing.assert_array_equal(index.rows_of(keys), np.arange(1, len(keys) + 1))
    unknown = np.setdiff1d(keys + 1, keys)
    assert not index.rows_of(unknown).any()


@pytest.mark.parametrize(("keys", "dense"), [([1, 2, 5], True), ([0, 2**40], False), ([], True), ([-(2**63)], True)])
def test_index_is_dense_where_the_keys_are(keys: list[int], dense: bool) -> None:
    index = KeyIndex.build("key", np.array(keys, dtype=np.int64))
    assert (index.hashes is None) == dense
    assert index.rows_of(np.array([2**63 - 1, -(2**63)])).tolist() == [0, 1 if keys == [-(2**63)] else 0]


@given(st.lists(st.lists(INT64, max_size=4), min_size=1, max_size=8))
def test_padded_lists_turn_back_into_the_same_lists(lists: list[list[int]]) -> None:
    lengths = np.array([len(values) for values in lists], dtype=np.int32)
    padded = np.zeros((len(lists), max(1, lengths.max())), dtype=np.int64)
    for row, values in enumerate(lists):
        padded[row, : len(values)] = values
    flat = Padded(padded, lengths).ragged()
    assert [flat.values[a:b].tolist() for a, b in pairwise(flat.offsets)] == lists


def small_plan() -> TransformPlan:
    """One of everything: results 0 … 2 are indexes, 3 … 7 steps."""
    return TransformPlan(
        inputs=(
            ColumnSpec(name="user", dtype="int64"),
            ColumnSpec(name="item", dtype="object"),
            ColumnSpec(name="price", dtype="float32"),
            ColumnSpec(name="seen", dtype="int64", width=ANY_WIDTH),
            ColumnSpec(name="age", dtype="int64"),
        ),
        indexes=(
            KeyIndex.build("user", np.array([7, 8]), missing_row=3),
            KeyIndex.build("item", strings([b"a", "é".encode()]), 3, missing_row=5),
            KeyIndex.build("seen", np.array([1, 2**50])),
        ),
        steps=(
            StepCall(step=Fill(value=1.5), inputs=("price",)),
            StepCall(step=Arithmetic(function="log"), inputs=(3,)),
            StepCall(step=Take(table=Vector(np.array([0, 10, 30, 0]))), inputs=(0,)),
            KeyIndex.build(5, np.array([10, 30])),
            StepCall(step=NullToEmpty(), inputs=("seen",)),
        ),
        columns=(
            Column(name="user", index=0, values=np.array([2, 3, 4, 1])),
            Column(name="item", index=1, values=np.arange(2, 8)),
            Column(
                name="tags",
                index=0,
                values=np.array([[0, 0], [5, 6], [7, 0], [0, 0]]),
                lengths=np.array([0, 2, 1, 0], dtype=np.int32),
            ),
            Computed(name="price", source=4, dtype="float32"),
            Column(name="rank", index=6, values=np.array([0.0, 0.5, 1.5])),
            Column(name="history", index=2, values=np.array([2, 3, 4]), width=ANY_WIDTH),
            Computed(name="seen", source=7, dtype="int64", width=ANY_WIDTH),
            Computed(name="age", source="age", dtype="int64"),
        ),
    )


REQUEST: dict[str, Any] = {
    "user": np.array([8, 99, 7]),
    "item": np.array(["é", b"zz", b"a"], dtype=object),
    "price": np.array([1.0, np.nan, -1.0], dtype=np.float32),
    "seen": Padded(np.array([[2**50, 1], [5, 0], [0, 0]]), np.array([2, 1, 0], dtype=np.int32)),
    "age": np.array([30, 40, 50]),
}


def plain(columns: dict[str, Any]) -> dict[str, Any]:
    """Arrays and padded lists as Python lists, shorter than their padding."""
    return {
        name: [row[:length].tolist() for row, length in zip(column.values, column.lengths, strict=True)]
        if isinstance(column, Padded)
        else column.tolist()
        for name, column in columns.items()
    }


def test_plan_looks_up_and_computes_every_column() -> None:
    columns = plain(small_plan().run(REQUEST))
    assert columns.pop("price") == pytest.approx([0.0, np.log(1.5), np.nan], nan_ok=True)
    unseen = 2 + int(bucket_of(strings([b"zz"]), 3)[0])
    assert columns == {
        "user": [4, 2, 3],
        "item": [6, unseen, 5],
        "tags": [[7], [], [5, 6]],
        "rank": [1.5, 0.0, 0.5],
        "history": [[4, 3], [2], []],
        "seen": [[2**50, 1], [5], []],
        "age": [30, 40, 50],
    }


def test_masks_mark_what_is_missing() -> None:
    missing = {name: np.array([True, False, True]) for name in ("user", "item", "price")}
    columns = plain(small_plan().run(REQUEST, missing | {"age": np.ones(3, dtype=bool)}))
    assert (columns["user"][1], columns["item"][1], columns["tags"][1]) == (1, 7, [])
    assert columns["price"][1] == pytest.approx(np.log(1.5))
    assert columns["age"] == [30, 40, 50]


def test_none_is_a_missing_string_and_a_masked_list_is_as_good_as_not_sent() -> None:
    plan = small_plan()
    request = REQUEST | {"item": np.array([None, "é", None], dtype=object)}
    assert plain(plan.run(request))["item"] == [7, 6, 7]
    seen = (Computed(name="seen", source=7, dtype="int64", width=ANY_WIDTH),)
    only_seen = TransformPlan(inputs=plan.inputs, indexes=plan.indexes, steps=plan.steps, columns=seen)
    assert plain(only_seen.run(REQUEST, {"seen": np.array([False, True, True])}))["seen"] == [[], [5], []]
    unsent = REQUEST | {"seen": Padded(REQUEST["seen"].values, np.array([MISSING_LIST, 1, 0], dtype=np.int32))}
    assert plain(only_seen.run(unsent))["seen"] == [[], [5], []]
    with pytest.raises(RequestError, match="column 'history' has missing values, first in row 1.*NullToEmptyList"):
        plan.run(unsent)


@pytest.mark.parametrize("name", ["age", "seen"])
def test_missing_value_that_is_not_filled_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match=r"column '(age|history)' has missing values, first in row 3.*FillMissing"):
        small_plan().run(REQUEST, {name: np.array([True, True, False])})


def test_saved_plan_gives_the_same_after_loading(tmp_path: Path) -> None:
    small_plan().save(tmp_path / "plan")
    loaded = TransformPlan.load(tmp_path / "plan")
    np.testing.assert_equal(plain(loaded.run(REQUEST)), plain(small_plan().run(REQUEST)))
    assert [column.spec for column in loaded.columns] == [column.spec for column in small_plan().columns]
    assert not loaded.indexes[1].rows.flags.owndata  # mapped, not read
    assert not loaded.columns[0].values.flags.owndata  # type: ignore[union-attr]


def test_zero_rows_give_zero_rows_of_the_right_dtypes() -> None:
    plan = small_plan()
    columns = plan.run({spec.name: spec.zeros(0) for spec in plan.inputs})
    for column in plan.columns:
        answer = columns[column.name]
        values = answer.values if isinstance(answer, Padded) else answer
        assert (len(values), values.dtype) == (0, column.spec.dtype)
    assert columns["tags"].values.shape == (0, 2)  # type: ignore[union-attr]


def test_row_of_zeros_can_be_run_to_warm_up() -> None:
    plan = small_plan()
    assert plain(plan.run({spec.name: spec.zeros(1) for spec in plan.inputs}))["seen"] == [[]]


@pytest.mark.parametrize(
    ("request_", "valid", "message"),
    [
        ({"user": REQUEST["user"]}, {}, r"'item' is missing. Expected: \['user', 'item', 'price', 'seen', 'age'\]"),
        (REQUEST | {"age": np.array([1.0, 2.0, 3.0])}, {}, "'age' is float64, expected int64"),
        (REQUEST | {"age": np.array([1])}, {}, "different numbers of rows"),
        (REQUEST | {"seen": np.array([1, 2, 3])}, {}, "'seen' is ndarray, expected padded lists"),
        (REQUEST | {"age": REQUEST["seen"]}, {}, "'age' is Padded, expected one value per row"),
        (REQUEST | {"item": np.array([1, 2, 3], dtype=object)}, {}, "'item' contains a non-string value.*Send bytes"),
        (REQUEST | {"age": np.array([[1], [2], [3]])}, {}, r"'age' has shape \[3, 1\], expected one value"),
        (
            REQUEST | {"seen": Padded(REQUEST["seen"].values, np.array([2, 3, 0], dtype=np.int32))},
            {},
            r"lengths of 'seen' are \[2 3 0\], which do not match its shape \[3, 2\]\.",
        ),
        (
            REQUEST | {"seen": Padded(REQUEST["seen"].values, np.array([2, -2, 0]))},
            {},
            "lengths of 'seen' are .*, which do not match",
        ),
        (
            REQUEST | {"seen": Padded(REQUEST["seen"].values, np.array([2, 1]))},
            {},
            "lengths of 'seen' are .* do not match",
        ),
        (REQUEST, {"age": np.array([True])}, r"valid\['age'\] is bool \[1\], expected bool \[3\]"),
        (REQUEST, {"age": np.array([1, 0, 1])}, r"valid\['age'\] is int64"),
        (REQUEST, {"nobody": np.array([True, True, True])}, r"valid contains \['nobody'\], which are not inputs"),
    ],
)
def test_bad_request_is_refused_by_name(request_: dict[str, Any], valid: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        small_plan().run(request_, valid)


def test_damage_is_reported_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"plan\.json cannot be read.*Export again"):
        TransformPlan.load(tmp_path)
    small_plan().save(tmp_path / "plan")
    arrow = tmp_path / "plan" / "array-0.arrow"
    arrow.write_bytes(arrow.read_bytes()[:40])
    with pytest.raises(ArtifactError, match="cannot be read"):
        TransformPlan.load(tmp_path / "plan")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"format_version": 3', '"format_version": 2', "format version 2, expected 3. Export again"),
        ('"Fill"', '"os.system"', "KeyError: 'os.system'"),
        ('"log"', '"frompyfunc"', "function 'frompyfunc' is not one of"),
        ('"array-0.arrow"', '"/etc/hostname"', "'/etc/hostname' is not the name of a file in the plan's directory"),
        ('"array-0.arrow"', '"../plan/array-0.arrow"', "is not the name of a file in the plan's directory"),
        ('"source": 7', '"source": 8', "8 is neither one of the inputs .* nor an earlier result"),
    ],
)
def test_plan_that_was_tampered_with_is_refused(tmp_path: Path, before: str, after: str, message: str) -> None:
    small_plan().save(tmp_path / "plan")
    document = tmp_path / "plan" / "plan.json"
    assert before in document.read_text()
    document.write_text(document.read_text().replace(before, after))
    with pytest.raises(ArtifactError, match=message):
        TransformPlan.load(tmp_path / "plan")


def test_strings_that_end_beyond_their_bytes_are_refused(tmp_path: Path) -> None:
    small_plan().save(tmp_path / "plan")
    name = re.findall(r'"strings_file": "(.*?)"', (tmp_path / "plan" / "plan.json").read_text())[0]
    ends = pa.py_buffer(np.array([0, 1 << 40, 2]))
    beyond = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 2, [None, ends, pa.py_buffer(b"ab")])
    batch = pa.record_batch([beyond], names=["array"])
    with pa.OSFile(str(tmp_path / "plan" / name), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(ArtifactError, match=r"ArrowInvalid.*Export again"):
        TransformPlan.load(tmp_path / "plan")


@pytest.mark.parametrize(
    ("array", "codec", "message"),
    [
        (strings([b"a" * 1_000]), "zstd", "is compressed"),
        (strings([b"a" * 1_000]), "lz4", "is compressed"),
        (strings([b"a"]).dictionary_encode(), None, "contains dictionary"),
        (pa.array([[1]]), None, "contains list"),
        (None, None, "it is not a regular file"),
    ],
)
def test_array_larger_than_its_file_is_refused(
    tmp_path: Path, array: pa.Array | None, codec: str | None, message: str
) -> None:
    small_plan().save(tmp_path / "plan")
    path = tmp_path / "plan/array-0.arrow"
    path.unlink()
    if array is None:
        os.mkfifo(path)
    else:
        batch = pa.record_batch([array], names=["array"])
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.ipc.new_file(path, batch.schema, options=options) as writer:
            writer.write_batch(batch)
    with pytest.raises(ArtifactError, match=message):
        TransformPlan.load(tmp_path / "plan")
