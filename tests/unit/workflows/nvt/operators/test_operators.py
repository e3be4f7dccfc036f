"""Operators that NVTabular lacks or has wrong; that plans serve the same is tested with the lowerings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pandas.testing import assert_frame_equal

from rankline.workflows.core.errors import ArtifactError, ConfigError, DataError
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in, load_workflow, save_workflow
from rankline.workflows.nvt.operators import (
    Bucketize,
    Categorify,
    HashedCategorify,
    HashShare,
    HexToInt,
    NullToEmptyList,
    OrderedCategorify,
    PaddedListSlice,
    StableHashBucket,
    StableHashedCross,
)
from rankline.workflows.nvt.operators.arrow_input import arrow_columns, frame_of
from rankline.workflows.preprocess.fit import fit
from tests.oracles.nvtabular import fitted, transformed

ROWS = pd.DataFrame(
    {
        "word": ["a", "b", None, "é", "a", "a"],
        "number": [1.0, 2.5, np.nan, 2.0**60, 1.0, 1.0],
        "key": [1, 2, 3, 4, 1, 1],
        "words": [["a", "q"], [], ["é"], ["a"], ["b", None], ["a"]],
    }
)
HASHED: dict[str, Callable[[], Any]] = {
    "HashedCategorify": lambda: ["word", "number", "key", "words"] >> HashedCategorify(num_buckets=4, max_size=7),
    "StableHashBucket": lambda: ["word", "number", "key", "words"] >> StableHashBucket(1000),
    "StableHashedCross": lambda: [["word", "number"], ["key", "word"]] >> StableHashedCross(1000),
    "HashShare": lambda: ["word", "number", "key", "words"] >> HashShare(100),
}


@pytest.mark.parametrize("graph", HASHED.values(), ids=HASHED)
def test_value_gets_the_same_id_in_every_row_and_batch(tmp_path: Path, graph: Callable[[], Any]) -> None:
    workflow = fitted(graph, ROWS, tmp_path)
    asked = ROWS.assign(word=["a", "new", "new", "é", "b", "newer"], key=[9, 9, 1, 8, 2, 9])
    asked["words"] = [["new", "a"], [], ["new"], ["b", "newer"], ["é"], ["new"]]
    with quiet_nvtabular():
        together = workflow.transform(asked)
        backwards = workflow.transform(asked.iloc[::-1].reset_index(drop=True))
    assert_frame_equal(together, backwards.iloc[::-1].reset_index(drop=True))


def test_unseen_values_of_lists_are_dealt_out_too(tmp_path: Path) -> None:
    workflow = fitted(lambda: ["words"] >> HashedCategorify(num_buckets=4, max_size=7), ROWS, tmp_path)
    with quiet_nvtabular():
        ids = workflow.transform(pd.DataFrame({"words": [["new", "a"], [], [f"new {i}" for i in range(50)]]}))["words"]
    assert [len(row) for row in ids] == [2, 0, 50]
    assert set(ids[2].tolist()) == {2, 3, 4, 5}
    assert ids[0][0] in {2, 3, 4, 5}
    assert ids[0][1] == 6  # the most frequent one, after padding, null and four buckets


def test_ordered_ids_follow_the_values(tmp_path: Path) -> None:
    rows = pd.DataFrame({"hour": [23, 7, 7, 7, 0, 12, 12, 23, 5], "price": [0.5, np.nan, -1.0, 0.5, 2, 2, 0.5, -1, 9]})
    workflow = fitted(lambda: ["hour", "price"] >> OrderedCategorify(freq_threshold=2), rows, tmp_path)
    asked = pd.DataFrame({"hour": [7, 12, 23, 0, 99], "price": [-1.0, 0.5, 2.0, np.nan, 9.0]})
    with quiet_nvtabular():
        ids = workflow.transform(asked)
    assert ids["hour"].tolist() == [3, 4, 5, 2, 2]  # 0 and 5 were there once, 99 never
    assert ids["price"].tolist() == [3, 4, 5, 1, 2]


def test_groups_are_refused_before_they_are_fitted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected columns to encode alone"):
        fitted(lambda: [["word", "key"]] >> HashedCategorify(num_buckets=4), ROWS, tmp_path)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (lambda: ["key"] >> Bucketize([2, 4]), [0, 1, 1, 2, 0, 0]),
        (lambda: ["key"] >> Bucketize({"key": [3]}), [0, 0, 1, 1, 0, 0]),
        (lambda: ["words"] >> NullToEmptyList() >> PaddedListSlice(2, pad_value="-"), [["a", "q"], ["-", "-"]]),
        (lambda: ["key"] >> StableHashBucket(1), [0] * 6),
        (lambda: ["key"] >> HashShare(1), [0] * 6),
        (lambda: ["word"] >> HexToInt() >> ops.FillMissing(-1), [10.0, 11.0, -1.0, -1.0, 10.0, 10.0]),
        (lambda: ["word"] >> HexToInt() >> Categorify(), [3, 4, 1, 1, 3, 3]),
    ],
)
def test_operators_survive_saving_as_data(tmp_path: Path, graph: Callable[[], Any], expected: list[Any]) -> None:
    workflow = fitted(graph, ROWS, tmp_path / "fit")
    save_workflow(workflow, tmp_path / "saved")
    with quiet_nvtabular():
        transformed = load_workflow(tmp_path / "saved").transform(ROWS[workflow.input_schema.column_names].copy())
    values = [row.tolist() if isinstance(row, np.ndarray) else row for row in transformed.iloc[:, 0]]
    assert values[: len(expected)] == expected


def test_nvtabulars_own_bucketize_cannot_be_saved_as_data(tmp_path: Path) -> None:
    """What `Bucketize` is for."""
    save_workflow(fitted(lambda: ["key"] >> ops.Bucketize([2, 4]), ROWS, tmp_path / "fit"), tmp_path / "saved")
    loaded = load_workflow(tmp_path / "saved")
    with pytest.raises(ArtifactError, match=r"operators\.Bucketize keeps them as data"):
        transformed(loaded, ROWS)


CODES = ["68fd1e64", "0F", None, "no", "", "0f", "1234567890abc"]
NUMBERS = [0x68FD1E64, 15, np.nan, np.nan, np.nan, 15, 0x1234567890ABC]


@pytest.mark.parametrize("dtype", [object, "category", "string", pd.ArrowDtype(pa.large_string())])
def test_hexadecimal_strings_of_every_kind_become_numbers(dtype: Any) -> None:
    frame = pd.DataFrame({"code": pd.Series(CODES, dtype=dtype), "bytes": [code and code.encode() for code in CODES]})
    made = HexToInt().transform(nvt.ColumnSelector(["code", "bytes"]), frame)
    np.testing.assert_array_equal(made["code"], NUMBERS)
    np.testing.assert_array_equal(made["bytes"], NUMBERS)


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_hexadecimal_strings_are_read_as_arrow_has_them(kind: pa.DataType) -> None:
    table = pa.table({"code": pa.array(CODES).cast(kind), "number": [1.5] * len(CODES)})
    frame = frame_of(table.slice(1), ["code"])
    assert list(frame) == ["number", "code"]
    made = HexToInt().transform(nvt.ColumnSelector(["code"]), frame)
    np.testing.assert_array_equal(made["code"].to_numpy(np.float64, na_value=np.nan), NUMBERS[1:])


@pytest.mark.parametrize(
    "encode",
    [Categorify, OrderedCategorify, lambda: HashedCategorify(num_buckets=3, freq_threshold=2)],
)
@pytest.mark.parametrize("npartitions", [1, 2])
def test_dictionary_gets_the_ids_that_its_rows_get(tmp_path: Path, encode: Callable[[], Any], npartitions: int) -> None:
    """Two strings may be one number, and what is no number is missing."""
    codes = [*CODES, *CODES[:2], "f", "a", "0a", "b"] * 2
    encoded = frame_of(pa.table({"code": pa.array(codes).dictionary_encode()}), ["code"])
    ids, vocabularies, example = {}, {}, nvt_rows(pd.DataFrame({"code": CODES[:2]}))
    for kind, rows in {"objects": pd.DataFrame({"code": codes}), "dictionary": encoded}.items():
        with quiet_nvtabular():
            workflow = nvt.Workflow(["code"] >> HexToInt() >> encode())
            keep_vocabularies_in(workflow, tmp_path / kind)
            dataset = nvt.Dataset(rows, npartitions=npartitions, schema=example.schema)
            fit(workflow, lambda _, dataset=dataset: dataset, example, lambda _: None)  # type: ignore[misc]  # bound now
            ids[kind] = workflow.transform(rows)["code"].tolist()
        files = (tmp_path / kind).rglob("*.parquet")
        vocabularies[kind] = [pd.read_parquet(path).to_dict("list") for path in files]
    assert ids["dictionary"] == ids["objects"]
    np.testing.assert_equal(vocabularies["dictionary"], vocabularies["objects"])


def test_hexadecimal_columns_that_are_missing_whole_stay_missing() -> None:
    frame = pd.DataFrame({"nan": [np.nan, np.nan], "none": [None, None], "category": pd.Categorical([None, None])})
    made = HexToInt().transform(nvt.ColumnSelector(list(frame)), frame)
    assert made.isna().all(axis=None)
    assert set(made.dtypes) == {np.dtype("float64")}


def test_raw_columns_that_only_hexadecimals_read_are_told() -> None:
    with quiet_nvtabular():
        workflow = nvt.Workflow(
            (["a", "b"] >> HexToInt() >> Categorify())
            + (["b"] >> StableHashBucket(3) >> ops.Rename(postfix="_hashed"))
            + (["c"] >> ops.LogOp())
        )
        alone = nvt.Workflow((["a"] >> HexToInt()) + (["b"] >> HexToInt() >> ops.FillMissing(0)))
    assert arrow_columns(workflow) == ["a"]
    assert arrow_columns(alone) == []


@pytest.mark.parametrize("make", [Categorify, lambda: HashedCategorify(num_buckets=4, max_size=7)])
def test_part_in_which_a_column_is_missing_whole_is_encoded_as_null(tmp_path: Path, make: Callable[[], Any]) -> None:
    workflow = fitted(lambda: ["word", "number", "key"] >> make(), ROWS, tmp_path)
    whole = ROWS[["word", "number", "key"]]
    part = whole.assign(word=None, number=np.nan)
    with quiet_nvtabular():
        encoded, usual = workflow.transform(part), workflow.transform(whole)
    assert encoded[["word", "number"]].eq(1).all(axis=None)
    assert list(encoded) == list(usual)
    assert encoded.dtypes.tolist() == usual.dtypes.tolist()
    assert encoded["key"].tolist() == usual["key"].tolist()


def test_column_without_any_value_to_learn_from_is_refused(tmp_path: Path) -> None:
    rows = nvt_rows(pd.DataFrame({"code": pd.Series([None, None], dtype=object), "other": ["a", "b"]}))
    with quiet_nvtabular():
        workflow = nvt.Workflow(["code", "other"] >> HexToInt() >> Categorify())
        keep_vocabularies_in(workflow, tmp_path)
        with pytest.raises(DataError, match=r"columns \['code'\] are missing in every training row"):
            workflow.fit(rows)


def nvt_rows(rows: pd.DataFrame) -> nvt.Dataset:
    with quiet_nvtabular():
        return nvt.Dataset(rows)


@pytest.mark.parametrize("options", [{}, {"freq_threshold": 3}, {"max_size": 9}, {"dtype": np.int32}])
def test_vocabularies_and_ids_are_nvtabulars(tmp_path: Path, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "key": rng.zipf(1.5, 500) % 40,
            "number": np.where(rng.random(500) < 0.2, np.nan, rng.zipf(1.5, 500) % 30 * rng.choice([-1.0, 1.0], 500)),
            "word": rng.choice(["a", "é", "b\0", "", None, "z"], 500),
            "words": [list(rng.choice(["p", "q", "r"], size)) for size in rng.integers(1, 4, 500)],
        }
    )
    made = []
    for name, operator in (("ours", Categorify), ("nvtabular", ops.Categorify)):
        with quiet_nvtabular():
            workflow = nvt.Workflow(list(rows) >> operator(**options))
            keep_vocabularies_in(workflow, tmp_path / name)
            workflow.fit(nvt.Dataset(rows, npartitions=11))
            made.append(workflow.transform(rows))
    assert_frame_equal(made[0], made[1])
    for path in (tmp_path / "nvtabular" / "categories").iterdir():
        assert_frame_equal(pd.read_parquet(tmp_path / "ours" / "categories" / path.name), pd.read_parquet(path))
