from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.plan import Column, KeyIndex, Padded, TensorSpec, TransformPlan
from workflows.errors import ArtifactError, RequestError
from workflows.hashing import bucket_of

INT64 = st.integers(-(2**63), 2**63 - 1)
NEAR = st.integers(-50, 50)


@given(
    st.lists(NEAR | INT64, max_size=20, unique=True),
    st.lists(NEAR | INT64, max_size=20),
    st.sampled_from([1, 2, 7]),
)
def test_an_index_finds_known_keys_and_deals_out_unknown_ones(
    known: list[int], asked: list[int], num_unknown: int
) -> None:
    index = KeyIndex.build("key", np.array(known, dtype=np.int64), num_unknown)
    asked = asked + known
    keys = np.array(asked, dtype=np.int64)
    expected = [
        num_unknown + known.index(key) if key in known else int(bucket_of(np.array([key]), num_unknown)[0])
        for key in asked
    ]
    assert index.rows_of(keys).tolist() == expected


@pytest.mark.parametrize(("keys", "dense"), [([1, 2, 5], True), ([0, 2**40], False), ([], True)])
def test_an_index_is_dense_where_the_keys_are(keys: list[int], dense: bool) -> None:
    assert (KeyIndex.build("key", np.array(keys, dtype=np.int64)).keys is None) == dense


@given(st.lists(st.lists(INT64, max_size=4), min_size=1, max_size=8))
def test_padded_lists_turn_back_into_the_same_lists(lists: list[list[int]]) -> None:
    lengths = np.array([len(values) for values in lists], dtype=np.int32)
    padded = np.zeros((len(lists), max(1, lengths.max())), dtype=np.int64)
    for row, values in enumerate(lists):
        padded[row, : len(values)] = values
    values, offsets = Padded(padded, lengths).ragged()
    assert [values[a:b].tolist() for a, b in pairwise(offsets)] == lists


def small_plan() -> TransformPlan:
    return TransformPlan(
        inputs=(TensorSpec(name="user", dtype="int64"), TensorSpec(name="item", dtype="int64")),
        indexes=(KeyIndex.build("user", np.array([7, 8])), KeyIndex.build("item", np.array([1, 2**50]), 3)),
        columns=(
            Column(name="user", index=0, values=np.array([2, 3, 4])),
            Column(name="item", index=1, values=np.arange(2, 7)),
            Column(
                name="tags",
                index=0,
                values=np.array([[0, 0], [5, 6], [7, 0]]),
                lengths=np.array([0, 2, 1], dtype=np.int32),
            ),
        ),
    )


REQUEST = {"user": np.array([8, 99, 7]), "item": np.array([2**50, 1, 5])}


def test_a_plan_looks_every_column_up() -> None:
    columns = small_plan().run(REQUEST)
    assert columns["user"].tolist() == [4, 2, 3]  # type: ignore[union-attr]
    assert columns["item"].tolist()[:2] == [6, 5]  # type: ignore[union-attr]
    assert columns["tags"].values.tolist() == [[7, 0], [0, 0], [5, 6]]  # type: ignore[union-attr]
    assert columns["tags"].lengths.tolist() == [1, 0, 2]  # type: ignore[union-attr]


def test_a_saved_plan_gives_the_same_after_loading(tmp_path: Path) -> None:
    small_plan().save(tmp_path / "plan")
    expected, actual = small_plan().run(REQUEST), TransformPlan.load(tmp_path / "plan").run(REQUEST)
    np.testing.assert_equal(
        {name: vars(c) if isinstance(c, Padded) else c for name, c in actual.items()},
        {name: vars(c) if isinstance(c, Padded) else c for name, c in expected.items()},
    )


def test_zero_rows_give_zero_rows() -> None:
    columns = small_plan().run({"user": np.array([], dtype=np.int64), "item": np.array([], dtype=np.int64)})
    assert columns["tags"].values.shape == (0, 2)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"user": REQUEST["user"]}, r"'item' is missing. Expected: \['user', 'item'\]"),
        (REQUEST | {"item": np.array([1.0, 2.0, 3.0])}, "'item' is float64, expected int64"),
        (REQUEST | {"item": np.array([1])}, "different numbers of rows"),
    ],
)
def test_a_bad_request_is_refused_by_name(request_: dict[str, np.ndarray], message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(RequestError, match=message):
        small_plan().run(request_)


def test_damage_is_told_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"plan\.json cannot be read.*Export again"):
        TransformPlan.load(tmp_path)
    small_plan().save(tmp_path / "plan")
    arrow = tmp_path / "plan" / "column-0-values.arrow"
    arrow.write_bytes(arrow.read_bytes()[:40])
    with pytest.raises(ArtifactError, match="cannot be read"):
        TransformPlan.load(tmp_path / "plan")
