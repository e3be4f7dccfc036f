"""Raw columns without a value that the plan knows."""

from typing import Any

import pandas as pd
import pytest

from rankline.workflows.compiler.compile import compile_workflow
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in
from rankline.workflows.nvt.operators import Categorify, HashedCategorify, HexToInt, NullToEmptyList
from rankline.workflows.plan import TransformPlan
from rankline.workflows.plan.unknown import unknown_columns
from tests.oracles.native_plan import wire_tensors

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
        ({"user": ["7", "8", None]}, ["user"]),
        ({"user": ["7", "0008", "9"]}, []),
        ({"user": [None, None, None]}, []),
        ({"price": [9.0, 8.0, 7.0]}, []),
        ({"code": ["0a", "zz", "0b"], "bucket": ["x", "y", "z"]}, ["bucket", "code"]),
        ({"code": ["0A", "FF", None]}, []),
        ({"tags": [["X"], [], ["Y", "Z"]]}, ["tags"]),
        ({"tags": [["X"], [], ["y", "Z"]]}, []),
        ({"tags": [[], [], []]}, []),
        ({"id0": [1, 2, 4], "id4": [2**40 + 1, 5, 6], "id3": [1, 2, 3]}, ["id0", "id4"]),
    ],
)
def test_a_column_of_unknown_values_is_found(plan: TransformPlan, changed: dict[str, Any], expected: list[str]) -> None:
    request = pd.DataFrame(KNOWN | changed)
    assert unknown_columns(plan, wire_tensors(plan, request)) == expected
