from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rankline.workflows.compiler.compile import compile_workflow
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.data.amazon.dataset import AMAZON
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in
from rankline.workflows.plan import TransformPlan
from rankline.workflows.preprocess import SequenceConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.schema.ragged import Padded
from tests.oracles.nvtabular import transformed

ITEMS = [f"B{number}" for number in range(30)]
CATALOG = pa.table(
    {
        "item_id": ITEMS[:28],
        "brand": [None if number % 3 else f"brand {number % 5}" for number in range(28)],
        "category": [f"category {number % 7}" for number in range(28)],
    }
)


def raw(**columns: Any) -> RawData:
    rng = np.random.default_rng(1)
    items = rng.integers(0, 25, 300) ** 2 // 25
    rows = pa.table({"user_id": [f"A{row // 10}" for row in range(300)], "item_id": [ITEMS[item] for item in items]})
    return RawData(rows=rows, catalog=CATALOG, fingerprint="", **columns)


def fitted(directory: Any, config: PrepareConfig | None = None, **choices: Any) -> nvt.Workflow:
    """The graph, fitted to one row per interaction; lists do not count."""
    found = raw()
    rows = found.rows.to_pandas().assign(history=pd.Series([ITEMS, *([] for _ in range(299))], dtype=object))
    with quiet_nvtabular():
        workflow = AMAZON.graph(found, config or PrepareConfig(), SequenceConfig(**choices))
        keep_vocabularies_in(workflow, directory)
        return workflow.fit(nvt.Dataset(rows))


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> nvt.Workflow:
    return fitted(tmp_path_factory.mktemp("workflow"), max_history=4, attributes="all")


@pytest.fixture(scope="module")
def requests() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    histories = [[ITEMS[item] for item in rng.integers(0, 30, length)] for length in (0, 1, 3, 4, 5, 50)]
    return pd.DataFrame(
        {
            "user_id": ["A1", "A2", "nobody", None, "A3", "A1"],
            "item_id": ["B0", "B29", "new", "B1", None, "B4"],
            "history": pd.Series([*histories[:5], [*histories[5], "new"]], dtype=object),
        }
    )


def served(plan: TransformPlan, rows: pd.DataFrame) -> dict[str, list[Any]]:
    lengths = np.array([len(row) for row in rows["history"]], dtype=np.int32)
    values = np.full((len(rows), lengths.max()), b"", dtype=object)
    for place, row in enumerate(rows["history"]):
        values[place, : len(row)] = [item.encode() for item in row]
    texts = {
        name: np.array([None if value is None else value.encode() for value in rows[name]], dtype=object)
        for name in ("user_id", "item_id")
    }
    answer = plan.run({**texts, "history": Padded(values, lengths)}, {})
    return {name: _as_lists(column) for name, column in answer.items()}


def _as_lists(column: Any) -> list[Any]:
    if not isinstance(column, Padded):
        return column.tolist()  # type: ignore[no-any-return]
    lists = column.ragged()
    values, offsets = lists.values, lists.offsets
    return [values[a:b].tolist() for a, b in pairwise(offsets)]


@pytest.mark.parametrize(
    ("attributes", "names"),
    [
        ("none", ["item_id"]),
        ("category", ["item_id", "category_id"]),
        ("all", ["item_id", "brand_id", "category_id"]),
    ],
)
def test_item_and_the_history_have_the_same_features_the_category_last(
    tmp_path: Any, attributes: str, names: list[str]
) -> None:
    schemas = fitted(tmp_path, attributes=attributes).output_schema.column_schemas
    for suffix in ("_trgt", "_pos"):
        assert [name.removesuffix(suffix) for name in schemas if name.endswith(suffix)] == names
    assert set(schemas) == {"user_id", *(name + suffix for name in names for suffix in ("_trgt", "_pos"))}
    for name in names:
        one, many = schemas[f"{name}_trgt"], schemas[f"{name}_pos"]
        assert (one.is_list, many.is_list) == (False, True)
        assert one.properties["embedding_sizes"] == many.properties["embedding_sizes"]


def test_items_have_the_same_ids_alone_and_in_a_history_and_the_latest_are_kept(
    workflow: nvt.Workflow, requests: pd.DataFrame
) -> None:
    made = transformed(workflow, requests)
    every = sorted({item for row in requests["history"] for item in row})
    alone = transformed(workflow, pd.DataFrame({"user_id": "A1", "item_id": every, "history": [[] for _ in every]}))
    for name in ("item_id", "brand_id", "category_id"):
        ids = dict(zip(every, alone[f"{name}_trgt"], strict=True))
        assert made[f"{name}_pos"] == [[ids[item] for item in row[-4:]] for row in requests["history"]]


def test_new_items_are_unseen_and_have_no_category(workflow: nvt.Workflow, requests: pd.DataFrame) -> None:
    made = transformed(workflow, requests)
    assert made["user_id"][2:4] == [2, 1]
    assert made["item_id_trgt"][2] == 2
    # B27 is in the catalogue, but nobody chose it: its category is known all the same.
    never, known, unknown = transformed(
        workflow, pd.DataFrame({"user_id": "A1", "item_id": ["B27", "B6", "new"], "history": [[], [], []]})
    )["category_id_trgt"]
    assert never == known != unknown == 2


def test_compiled_plan_gives_the_same_bits_in_lists_as_wide_as_the_longest_history(
    workflow: nvt.Workflow, requests: pd.DataFrame, tmp_path: Any
) -> None:
    compile_workflow(workflow).save(tmp_path / "plan")
    plan = TransformPlan.load(tmp_path / "plan")
    assert served(plan, requests) == transformed(workflow, requests)
    widths = {column.name: column.spec.width for column in plan.columns}
    assert widths == {name: 4 if name.endswith("_pos") else None for name in workflow.output_schema.column_names}


def test_rare_and_unseen_items_share_an_id_or_some_buckets(tmp_path: Any, requests: pd.DataFrame) -> None:
    rare = fitted(tmp_path / "rare", PrepareConfig(frequency_threshold=20))
    hashed = fitted(tmp_path / "hashed", PrepareConfig(frequency_threshold=20, hash_buckets=6))
    assert served(compile_workflow(hashed), requests) == transformed(hashed, requests)
    cardinality = {
        name: made.output_schema.column_schemas["item_id_pos"].properties["embedding_sizes"]["cardinality"]
        for name, made in (("rare", rare), ("hashed", hashed))
    }
    assert 3 < cardinality["rare"] < 25
    assert cardinality["hashed"] == cardinality["rare"] + 5
    unseen = [row[-1] for row in transformed(hashed, requests)["item_id_pos"][-1:]]
    assert all(2 <= value < 8 for value in unseen)


def test_attributes_are_named() -> None:
    with pytest.raises(ConfigError, match="attributes is 'some'. Available: none, category, all"):
        SequenceConfig(attributes="some")
