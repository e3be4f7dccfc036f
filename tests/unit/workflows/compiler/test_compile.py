"""How a graph becomes a plan: what is folded, linked and refused. Operators have tests of their own."""

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

from rankline.serving.triton.transforms import UncompiledTransform
from rankline.workflows.compiler.compile import compile_workflow, input_specs
from rankline.workflows.compiler.operators import LOWERINGS, REFUSED
from rankline.workflows.core.errors import LoweringError, UnfitError
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in
from rankline.workflows.nvt.operators import (
    Categorify,
    GreaterThan,
    HashedCategorify,
    HexToInt,
    NullToEmptyList,
    StableHashBucket,
)
from rankline.workflows.plan import Column, TransformPlan
from rankline.workflows.plan.tensors import unknown_columns
from rankline.workflows.schema.ragged import Padded
from tests.oracles.lowering import assert_same
from tests.oracles.native_plan import wire_tensors
from tests.oracles.nvtabular import fitted

from merlin.dag.ops.subgraph import Subgraph  # isort: skip


class Misspelt(ops.Operator):  # type: ignore[misc]  # NVTabular has no types
    def transform(self, col_selector: Any, df: Any) -> Any:
        return df[col_selector.names]

    def lower(self, selector: Any, columns: Any) -> Any:
        return {name: columns[name] for name in selector.name}


class ReturnsNothing(Misspelt):
    def lower(self, selector: Any, columns: Any) -> Any: ...


class ReturnsList(Misspelt):
    def lower(self, selector: Any, columns: Any) -> Any:
        return [columns[name] for name in selector.names]


class ReturnsNumbers(Misspelt):
    def lower(self, selector: Any, columns: Any) -> Any:
        return dict.fromkeys(selector.names, 1.5)


ROWS = pd.DataFrame({"a": [1, 2, 2], "b": [1, 5, 5], "x": [0.5, 1.5, 2.5], "w": ["p", "q", None]})
BRANDS = pd.DataFrame({"a": [1, 2], "brand": ["p", "q"], "cost": [0.5, 0.25]})


def brands() -> Any:
    return ["a"] >> ops.JoinExternal(BRANDS, on=["a"])


def test_numbers_pass_through_unchanged(tmp_path: Path) -> None:
    workflow = fitted(lambda: ["a", "x"] >> ops.AddTags(["raw"]), ROWS, tmp_path)
    plan = compile_workflow(workflow)
    assert (plan.indexes, plan.steps) == ((), ())
    assert_same(workflow, plan, ROWS[["a", "x"]])


def test_text_of_a_workflow_fitted_without_rankline_is_text(tmp_path: Path) -> None:
    """Unless `dask_options` is imported, Dask converts text to Arrow's strings, whose dtype is not object."""
    with dask.config.set({"dataframe.convert-string": True}):
        workflow = fitted(lambda: ["w"] >> ops.Categorify(), ROWS, tmp_path)
    assert np.dtype(workflow.input_schema["w"].dtype.to_numpy).kind == "U"
    assert [spec.dtype for spec in compile_workflow(workflow).inputs] == ["object"]


def test_columns_of_one_join_share_an_index(tmp_path: Path) -> None:
    def graph() -> Any:
        joined = brands()
        return (joined["brand"] >> ops.Categorify()) + (joined["cost"] >> ops.FillMissing(0) >> ops.LogOp())

    plan = compile_workflow(fitted(graph, ROWS, tmp_path))
    assert [type(column) for column in plan.columns] == [Column, Column]
    assert (len(plan.indexes), plan.steps) == (1, ())


def test_nested_and_concatenated_graphs_are_walked(tmp_path: Path) -> None:
    def graph() -> Any:
        inner = Subgraph("inner", ["a", "b"] >> ops.Categorify() >> ops.Rename(postfix="_id"))
        filled = ["x"] >> ops.FillMissing(0)
        both = inner + filled + (filled >> ops.LogOp() >> ops.Rename(postfix="_log"))
        return both - (filled >> ops.AddTags(["left out"]))

    workflow = fitted(graph, ROWS, tmp_path)
    plan = compile_workflow(workflow)
    assert [column.name for column in plan.columns] == ["a_id", "b_id", "x_log"]
    assert_same(workflow, plan, ROWS[["a", "b", "x"]])


def test_columns_below_a_cardinality_are_left_out(tmp_path: Path) -> None:
    rows = pd.DataFrame({"many": range(50), "few": [1] * 50})
    workflow = fitted(lambda: ["many", "few"] >> ops.Categorify() >> ops.DropLowCardinality(10), rows, tmp_path)
    plan = compile_workflow(workflow)
    assert [column.name for column in plan.columns] == ["many"]
    assert_same(workflow, plan, rows)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (lambda: ["x"] >> GreaterThan(1.0), r"operator GreaterThan \(columns \['x'\]\) cannot be compiled. Replace"),
        (lambda: ["x"] >> Misspelt(), r"Misspelt\.lower failed \(AttributeError: .*'name'\)\. Fix it .*, or"),
        (lambda: ["x"] >> ReturnsNothing(), r"ReturnsNothing\.lower returns NoneType, expected a mapping from column"),
        (lambda: ["x"] >> ReturnsList(), r"ReturnsList\.lower returns list, expected a mapping from column names to"),
        (lambda: ["x"] >> ReturnsNumbers(), r"ReturnsNumbers\.lower returns float for column 'x', expected a mapping"),
        (lambda: ["a"] >> ops.Filter(lambda frame: frame["a"] > 0), r"operator Filter \(columns \['a'\]\) drops rows"),
        (lambda: ["x"] >> ops.Dropna(), "operator Dropna .*drops rows.*FillMissing"),
        (
            lambda: ["x"] >> ops.DifferenceLag("a"),
            "operator DifferenceLag .*neighboring rows.*Compute the values before",
        ),
        (lambda: ["a", "x"] >> ops.Groupby("a", aggs="sum"), "operator Groupby .*merges many rows into one"),
        (lambda: ["x"] >> ops.LambdaOp(lambda column: column + 1), "LambdaOp .*Python function.*operator class"),
        (
            lambda: ["w"] >> ops.AddTags(["raw"]),
            "column 'w' contains strings, but a model needs numbers. Add Categorify",
        ),
        (lambda: brands()["brand"], "column 'brand' contains strings"),
        (lambda: ["a"] >> ops.TargetEncoding("x", kfold=2, drop_folds=False), r"TargetEncoding outputs columns"),
        (
            lambda: (["a"] >> ops.Categorify()) + (["a"] >> ops.Categorify(max_size=9) >> ops.Rename(postfix="_")),
            "Categorify and Categorify on 'a' wrote their statistics to the same file",
        ),
    ],
)
def test_operator_that_cannot_be_compiled_is_refused_by_name(tmp_path: Path, graph: Any, message: str) -> None:
    workflow = fitted(graph, ROWS, tmp_path)
    with pytest.raises(LoweringError, match=message):
        compile_workflow(workflow)


def test_subgraph_that_loops_is_refused() -> None:
    with quiet_nvtabular():
        loop = Subgraph("inner", ["x"] >> ops.LogOp(), loop_until=len)
        workflow = nvt.Workflow(["x"] >> loop).fit_schema(nvt.Dataset(ROWS).schema)
    with pytest.raises(LoweringError, match="subgraph 'inner' uses loop_until"):
        compile_workflow(workflow)


def test_nvtabular_operators_are_lowered_or_rejected() -> None:
    known = {op for op in vars(ops).values() if isinstance(op, type) and issubclass(op, ops.Operator)}
    abstract = {ops.Operator, ops.StatOperator}
    assert {op.__name__ for op in known - abstract - set(LOWERINGS) - set(REFUSED)} == {"ColumnSimilarity"}


def test_outputs_have_the_dtypes_that_a_model_takes(tmp_path: Path) -> None:
    names = ["x0", "x1"]
    rows = pd.DataFrame({name: [1.5, -2.0, 0.25, 7.0] for name in names} | {"id": [3, 4, 5, 3]})
    workflow = fitted(lambda: (names >> ops.Normalize()) + (["id"] >> StableHashBucket(7)), rows, tmp_path)
    plan = compile_workflow(workflow, dict.fromkeys(names, "float32") | {"id": "int64"})
    request = {name: rows[name].to_numpy() for name in rows}
    own, wanted = compile_workflow(workflow).run(request), plan.run(request)
    assert {array.dtype.name for name, array in own.items() if name != "id"} == {"float64"}
    assert own["id"].dtype == np.int32
    for name, array in wanted.items():
        assert array.dtype == {column.name: column.spec.dtype for column in plan.columns}[name]
        np.testing.assert_array_equal(array, own[name].astype(array.dtype))
    assert wanted["id"].dtype == np.int64
    assert wanted["x0"].dtype == np.float32


def test_tables_with_more_than_a_model_takes_are_refused_by_name(tmp_path: Path) -> None:
    rows = pd.DataFrame({"id": np.arange(200), "tags": [[1, 2, 3]] * 200})

    def graph() -> Any:
        return ["id", "tags"] >> ops.Categorify()

    workflow = fitted(graph, rows, tmp_path)
    with pytest.raises(
        LoweringError, match=r"^column 'id' contains 128, which is out of range for int8\. Save the model"
    ):
        compile_workflow(workflow, {"id": "int8"})
    plan = compile_workflow(workflow, {"id": "uint8"}, widths={"tags": 4})
    made = plan.run({"id": np.array([0, 199]), "tags": Padded(np.array([[1, 2], [3, 0]]), np.array([2, 1], np.int32))})
    assert made["id"].dtype == np.uint8
    assert made["tags"].values.shape == (2, 4)


def test_uncompiled_transform_refuses_values_that_do_not_fit_the_model(tmp_path: Path) -> None:
    rows = pd.DataFrame({"id": [1, 2], "tags": [[1, 2], [3]]})
    workflow = fitted(lambda: ["id", "tags"] >> ops.AddMetadata(), rows, tmp_path)
    transform = UncompiledTransform.of(workflow, input_specs(workflow), {"id": "int8", "tags": "int32"}, {"tags": 3})

    def run(id_: int, *tags: int) -> Any:
        lists = Padded(np.array([[*tags]]), np.array([len(tags)], np.int32))
        return transform.run({"id": np.array([id_]), "tags": lists})

    made = run(7, 1, 2)
    assert (made["id"].tolist(), made["tags"].values.tolist()) == ([7], [[1, 2, 0]])
    with pytest.raises(UnfitError, match="column 'id' contains 300, which is out of range for int8"):
        run(300, 1)
    with pytest.raises(UnfitError, match="column 'tags' has a list of 4 values, expected at most 3"):
        run(7, 1, 2, 3, 4)


IDS = [f"id{number}" for number in range(5)]
KNOWN: dict[str, list[Any]] = {
    "user": ["0007", "0008", None],
    "price": [1.5, 2.5, 3.5],
    "code": ["0f", "ff", None],
    "bucket": ["a", "b", "c"],
    "tags": [["x", "y"], [], ["z"]],
    **{name: [2**40, -(2**50), 3] for name in IDS},
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> TransformPlan:
    """Vocabularies of texts, of computed keys, with buckets, of lists, of a combination, and of numbers."""
    with quiet_nvtabular():
        graph = (["user"] >> Categorify()) + (["code"] >> HexToInt() >> Categorify())
        graph = graph + (["bucket"] >> HashedCategorify(num_buckets=3)) + (["price"] >> nvt.ops.Normalize())
        graph = graph + (["tags"] >> NullToEmptyList() >> Categorify()) + (IDS >> Categorify())
        workflow = nvt.Workflow(graph + ([["user", "bucket"]] >> nvt.ops.Categorify(encode_type="combo")))
        keep_vocabularies_in(workflow, tmp_path_factory.mktemp("workflow"))
        workflow.fit(nvt.Dataset(pd.DataFrame(KNOWN)))
        return compile_workflow(workflow)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"user": ["7", "8", "9"]}, ["user"]),
        ({"user": ["7", "0008", "9"]}, []),
        ({"user": [None, None, None]}, []),
        ({"code": ["0a", "zz", "0b"], "bucket": ["x", "y", "z"]}, ["bucket", "code"]),
        ({"tags": [["X"], [], ["Y", "Z"]]}, ["tags"]),
        ({"tags": [[], [], []]}, []),
        ({"id0": [1, 2, 4], "id4": [2**40 + 1, 5, 6], "id3": [1, 2, 3]}, ["id0", "id4"]),
    ],
)
def test_column_of_unknown_values_is_found(plan: TransformPlan, changed: dict[str, Any], expected: list[str]) -> None:
    request = pd.DataFrame(KNOWN | changed)
    assert unknown_columns(plan, wire_tensors(plan, request)) == expected
