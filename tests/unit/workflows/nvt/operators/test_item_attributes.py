"""Operators for items and lists of items; that plans serve the same is tested with the lowerings."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import load_workflow, save_workflow
from rankline.workflows.nvt.operators import ItemAttributes, SharedCategorify
from tests.oracles.nvtabular import fitted, transformed

ITEMS = pd.DataFrame({"item": ["a", "b", "é"], "kind": ["x", None, "y"], "size": [1, 2, 3], "other": [0, 0, 0]})
ROWS = pd.DataFrame({"item": ["a", "b", "b", None], "item_before": [["é", "a"], [], ["b", None, "new"], ["a"]]})


def attributes(items: pd.DataFrame = ITEMS, **fill: Any) -> ItemAttributes:
    return ItemAttributes(items, "item", fill or {"kind": "none", "size": -1})


def test_single_items_and_lists_get_attributes_and_what_is_unknown_or_missing_the_fill() -> None:
    made = attributes().transform(nvt.ColumnSelector(["item", "item_before"]), ROWS)
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

    assert transformed(fitted(graph, ROWS, tmp_path), rows)["kind_before"] == lists


def test_schema_knows_dtypes_and_lists(tmp_path: Path) -> None:
    workflow = fitted(lambda: ["item", "item_before"] >> attributes(), ROWS, tmp_path)
    schemas = workflow.output_schema.column_schemas
    assert {name: (str(schema.dtype.name), schema.is_list) for name, schema in schemas.items()} == {
        "kind": ("str", False),
        "size": ("int64", False),
        "kind_before": ("str", True),
        "size_before": ("int64", True),
    }


def test_saved_workflow_is_loaded_as_data_and_gives_the_same(tmp_path: Path) -> None:
    def graph() -> Any:
        columns = ["item", "item_before"]
        known = columns >> attributes() >> SharedCategorify({"kind_before": "kind", "size_before": "size"})
        return known + (columns >> SharedCategorify({"item_before": "item"}, num_buckets=4))

    workflow = fitted(graph, ROWS, tmp_path / "scratch")
    with quiet_nvtabular():
        save_workflow(workflow, tmp_path / "workflow")
    assert transformed(load_workflow(tmp_path / "workflow"), ROWS) == transformed(workflow, ROWS)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b", "a"], "0 missing, 1 repeated"),
        (["a", None, "b"], "1 missing, 0 repeated"),
        ([], "item of 0 items"),
    ],
)
def test_every_item_is_there_once(names: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        attributes(pd.DataFrame({"item": names, "kind": "x"}), kind="none")


def test_columns_of_items_are_named_by_the_key() -> None:
    with pytest.raises(ConfigError, match="got a column 'movie', expected one whose name begins with 'item'"):
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
