"""Operators that NVTabular lacks or has wrong; that plans serve the same is tested with the lowerings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pandas.testing import assert_frame_equal

from rankline.workflows.core.errors import ArgumentError, ArtifactError, ConfigError, DataError
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.fitted import OnlineWorkflow
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in, load_workflow, save_workflow
from rankline.workflows.nvt.operators import (
    Bucketize,
    Categorify,
    HashedCategorify,
    HashShare,
    HexToInt,
    ItemAttributes,
    NullToEmptyList,
    OrderedCategorify,
    PaddedListSlice,
    SharedCategorify,
    StableHashBucket,
    StableHashedCross,
)
from rankline.workflows.nvt.operators.arrow_input import arrow_columns, frame_of
from rankline.workflows.nvt.operators.hashing import with_stable_hashes
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


def test_ordered_ids_follow_the_values(tmp_path: Path) -> None:
    rows = pd.DataFrame({"hour": [23, 7, 7, 7, 0, 12, 12, 23, 5], "price": [0.5, np.nan, -1.0, 0.5, 2, 2, 0.5, -1, 9]})
    workflow = fitted(lambda: ["hour", "price"] >> OrderedCategorify(freq_threshold=2), rows, tmp_path)
    asked = pd.DataFrame({"hour": [7, 12, 23, 0, 99], "price": [-1.0, 0.5, 2.0, np.nan, 9.0]})
    with quiet_nvtabular():
        ids = workflow.transform(asked)
    assert ids["hour"].tolist() == [3, 4, 5, 2, 2]  # 0 and 5 were there once, 99 never
    assert ids["price"].tolist() == [3, 4, 5, 1, 2]


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (lambda: ["key"] >> Bucketize([2, 4]), [0, 1, 1, 2, 0, 0]),
        (lambda: ["words"] >> NullToEmptyList() >> PaddedListSlice(2, pad_value="-"), [["a", "q"], ["-", "-"]]),
        (lambda: ["key"] >> HashShare(1), [0] * 6),
        (lambda: ["word"] >> HexToInt() >> ops.FillMissing(-1), [10.0, 11.0, -1.0, -1.0, 10.0, 10.0]),
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
    with pytest.raises(ArtifactError, match=r"operators\.Bucketize, which stores them as data"):
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
    "encode", [Categorify, OrderedCategorify, lambda: HashedCategorify(num_buckets=3, freq_threshold=2)]
)
def test_dictionary_gets_the_ids_that_its_rows_get(tmp_path: Path, encode: Callable[[], Any]) -> None:
    """Two strings may be one number, and what is no number is missing."""
    codes = [*CODES, *CODES[:2], "f", "a", "0a", "b"] * 2
    encoded = frame_of(pa.table({"code": pa.array(codes).dictionary_encode()}), ["code"])
    ids, vocabularies, example = {}, {}, nvt_rows(pd.DataFrame({"code": CODES[:2]}))
    for kind, rows in {"objects": pd.DataFrame({"code": codes}), "dictionary": encoded}.items():
        with quiet_nvtabular():
            workflow = nvt.Workflow(["code"] >> HexToInt() >> encode())
            keep_vocabularies_in(workflow, tmp_path / kind)
            dataset = nvt.Dataset(rows, npartitions=2, schema=example.schema)
            fit(workflow, lambda _, dataset=dataset: dataset, example, lambda _: None)  # type: ignore[misc]  # bound now
            ids[kind] = workflow.transform(rows)["code"].tolist()
        files = (tmp_path / kind).rglob("*.parquet")
        vocabularies[kind] = [pd.read_parquet(path).to_dict("list") for path in files]
    assert ids["dictionary"] == ids["objects"]
    np.testing.assert_equal(vocabularies["dictionary"], vocabularies["objects"])


def test_raw_columns_read_only_by_hex_to_int_are_found() -> None:
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


@pytest.mark.parametrize("options", [{"freq_threshold": 3}, {"max_size": 9, "dtype": np.int32}])
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


ITEMS = pd.DataFrame({"item": ["a", "b", "é"], "kind": ["x", None, "y"], "size": [1, 2, 3], "other": [0, 0, 0]})
ITEM_ROWS = pd.DataFrame({"item": ["a", "b", "b", None], "item_before": [["é", "a"], [], ["b", None, "new"], ["a"]]})


def attributes(items: pd.DataFrame = ITEMS, **fill: Any) -> ItemAttributes:
    return ItemAttributes(items, "item", fill or {"kind": "none", "size": -1})


def test_single_items_and_lists_get_attributes_and_what_is_unknown_or_missing_the_fill() -> None:
    made = attributes().transform(nvt.ColumnSelector(["item", "item_before"]), ITEM_ROWS)
    assert made["kind"].tolist() == ["x", "none", "none", "none"]
    assert made["size"].tolist() == [1, 2, 2, -1]
    assert made["size"].dtype == np.int64
    assert [row.tolist() for row in made["kind_before"]] == [["y", "x"], [], ["none", "none", "none"], ["x"]]
    assert [row.tolist() for row in made["size_before"]] == [[3, 1], [], [2, -1, -1], [1]]
    assert list(made) == ["kind", "size", "kind_before", "size_before"]


def test_numbers_are_items_only_if_they_are_equal() -> None:
    items = pd.DataFrame({"item": [2**53 + 1, -1, 2**63 - 1], "size": [1.5, np.nan, 2.5]})
    rows = pd.DataFrame({"item": [2**53 + 1, 2**53, 2**63 - 1, -1]})
    op = attributes(items, size=0.25)
    assert op.transform(nvt.ColumnSelector(["item"]), rows)["size"].tolist() == [1.5, 0.25, 2.5, 0.25]
    fractions = pd.DataFrame({"item": [-1.5, np.nan, 1e300, -1.0]})
    assert op.transform(nvt.ColumnSelector(["item"]), fractions)["size"].tolist() == [0.25] * 4


@pytest.mark.parametrize("lists", [[[], []], [[]]])
def test_lists_that_are_all_empty_stay_empty(tmp_path: Path, lists: list[Any]) -> None:
    rows = pd.DataFrame({"item": ["a"] * len(lists), "item_before": pd.Series(lists, dtype=object)})

    def graph() -> Any:
        return ["item", "item_before"] >> attributes(kind="none") >> SharedCategorify({"kind_before": "kind"})

    assert transformed(fitted(graph, ITEM_ROWS, tmp_path), rows)["kind_before"] == lists


def test_saved_workflow_is_loaded_as_data_and_gives_the_same(tmp_path: Path) -> None:
    def graph() -> Any:
        columns = ["item", "item_before"]
        known = columns >> attributes() >> SharedCategorify({"kind_before": "kind", "size_before": "size"})
        return known + (columns >> SharedCategorify({"item_before": "item"}, num_buckets=4))

    workflow = fitted(graph, ITEM_ROWS, tmp_path / "scratch")
    with quiet_nvtabular():
        save_workflow(workflow, tmp_path / "workflow")
    assert transformed(load_workflow(tmp_path / "workflow"), ITEM_ROWS) == transformed(workflow, ITEM_ROWS)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b", "a"], "got 3 items, of which 0 are missing and 1 are duplicates"),
        ([], "item must be a non-empty column of distinct values, got 0 items"),
    ],
)
def test_item_attributes_require_distinct_items(names: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        attributes(pd.DataFrame({"item": names, "kind": "x"}), kind="none")


def test_columns_of_items_are_named_by_the_key() -> None:
    with pytest.raises(ConfigError, match="got column 'movie', expected a name starting with 'item'"):
        attributes().transform(nvt.ColumnSelector(["movie"]), pd.DataFrame({"movie": ["a"]}))


@pytest.mark.parametrize("kind", [str, int])
def test_lists_take_the_ids_of_single_values_and_are_not_counted(tmp_path: Path, kind: type) -> None:
    # Counted together, 3 would come first, and 4 would be known.
    rows = pd.DataFrame(
        {"item": [kind(value) for value in (1, 2, 2, 3)], "before": [[kind(v) for v in (3, 3, 4)], [], [kind(1)], []]}
    )
    workflow = fitted(lambda: ["item", "before"] >> SharedCategorify({"before": "item"}), rows, tmp_path)
    made = transformed(workflow, rows)
    first, *others = made["item"][1], made["item"][0], made["item"][3]
    assert (first, set(others)) == (3, {4, 5})
    assert made["before"] == [[made["item"][3]] * 2 + [2], [], [made["item"][0]], []]
    sizes = {
        name: column.properties["embedding_sizes"] for name, column in workflow.output_schema.column_schemas.items()
    }
    assert sizes["item"] == sizes["before"]
    assert sizes["item"]["cardinality"] == 6


def test_rare_values_are_unseen_in_lists_too_and_fall_into_the_same_buckets(tmp_path: Path) -> None:
    rows = pd.DataFrame({"item": ["a", "a", "b", "c"], "before": [["b", "c"], ["a"], ["new"], []]})

    def graph() -> Any:
        return ["item", "before"] >> SharedCategorify({"before": "item"}, freq_threshold=2, num_buckets=50)

    made = transformed(fitted(graph, rows, tmp_path), rows)
    assert made["item"][0] == made["before"][1][0] == 52
    assert made["before"][0] == made["item"][2:]
    assert all(2 <= value < 52 for value in made["before"][0] + made["before"][2])


HASHED_ROWS = pd.DataFrame({"word": list("abcdef"), "key": [1, 2, 3, 4, 5, 6]})
SAME = pd.DataFrame({"word": ["new"] * 50, "key": [99] * 50})

NVTABULARS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "HashBucket by column": (
        lambda: ["word", "key"] >> ops.HashBucket({"word": 100, "key": 7}),
        lambda: ["word", "key"] >> StableHashBucket({"word": 100, "key": 7}),
    ),
    "HashedCross": (
        lambda: [["word", "key"]] >> ops.HashedCross(100),
        lambda: [["word", "key"]] >> StableHashedCross(100),
    ),
    "Categorify": (
        lambda: ["word", "key"] >> ops.Categorify(num_buckets=50, max_size=53),
        lambda: ["word", "key"] >> HashedCategorify(num_buckets=50, max_size=53),
    ),
    "our Categorify": (
        lambda: ["key"] >> Categorify(num_buckets=50, max_size=53) >> ops.Rename(postfix="_id"),
        lambda: ["key"] >> HashedCategorify(num_buckets=50, max_size=53) >> ops.Rename(postfix="_id"),
    ),
}


@pytest.mark.parametrize(("graph", "stable"), NVTABULARS.values(), ids=NVTABULARS)
def test_loader_and_serving_give_the_same_bucket(
    tmp_path: Path, graph: Callable[[], Any], stable: Callable[[], Any]
) -> None:
    workflow = fitted(graph, HASHED_ROWS, tmp_path / "given")
    own = transformed(workflow, SAME)
    made = OnlineWorkflow(workflow)(pa.Table.from_pandas(SAME)).to_pydict()
    expected = OnlineWorkflow(fitted(stable, HASHED_ROWS, tmp_path / "stable"))(pa.Table.from_pandas(SAME)).to_pydict()
    assert made == expected
    assert all(len(set(ids)) == 1 for ids in made.values())
    assert transformed(workflow, SAME) == own != made  # which is left to its owner


def test_graph_is_replaced_before_it_is_fitted_too() -> None:
    with quiet_nvtabular():
        workflow = with_stable_hashes(nvt.Workflow(["word"] >> ops.HashBucket(100)))
        made = workflow.fit_transform(nvt.Dataset(SAME)).compute()
    assert made["word"].nunique() == 1


def test_hashed_combinations_are_refused() -> None:
    with quiet_nvtabular():
        workflow = nvt.Workflow([["word", "key"]] >> ops.Categorify(encode_type="combo", num_buckets=5, max_size=8))
    with pytest.raises(ConfigError, match=r"column groups \[\['word', 'key'\]\].*row position\. Omit num_buckets"):
        with_stable_hashes(workflow)


ONLINE_ROWS = pd.DataFrame({"user": [3, 1, 3], "price": [1.0, 2.0, 4.0], "label": [0, 1, 1]})


def fitted_to_rows(graph: nvt.WorkflowNode) -> nvt.Workflow:
    with quiet_nvtabular():
        return nvt.Workflow(graph).fit(nvt.Dataset(ONLINE_ROWS))


def test_online_workflow_makes_its_columns_and_keeps_others() -> None:
    workflow = fitted_to_rows(["price"] >> ops.FillMissing() >> ops.LogOp())
    online = OnlineWorkflow(workflow, keep=["price", "label"])
    assert online.columns == ("price", "label")
    table = pa.Table.from_pandas(ONLINE_ROWS)
    made = online(table)
    assert made.column_names == ["price", "label"]
    assert made["label"] == table["label"]
    with quiet_nvtabular():
        assert made["price"].to_pylist() == workflow.transform(ONLINE_ROWS)["price"].tolist()


@pytest.mark.parametrize("other", ["directory", ["user"] >> ops.Categorify()])
def test_online_workflow_refuses_other_objects(other: object) -> None:
    got = rf"map\(\) got a {type(other).__name__}, expected a function of a batch or a fitted nvtabular.Workflow"
    with pytest.raises(ArgumentError, match=got):
        OnlineWorkflow(other)
