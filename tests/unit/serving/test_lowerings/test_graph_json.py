"""Workflows that NVTabular's main branch has saved as `graph.json`: loaded and compiled, they make what they made."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from comparing import assert_same, served

from serving.compile import compile_workflow
from tests.support.golden import functions, graph_json
from tests.support.golden.files import HAS_FMA, read_json
from workflows import saved_functions
from workflows.errors import ArtifactError, LoweringError
from workflows.saved_operators import OPERATORS
from workflows.upstream import nvt, ops, quiet_nvtabular
from workflows.workflow_store import load_workflow, save_workflow

from merlin.dag.ops.subgraph import Subgraph  # isort: skip

_CLASS = re.compile(r'"op_class": "([^"]+)"')
NAMES = list(graph_json.graphs(ops, nvt.ColumnSelector, Subgraph))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return graph_json.unpack(tmp_path_factory.mktemp("graph_json"))


@pytest.fixture
def _named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if an installed package named the functions of the golden workflows."""

    def named(module: str, name: str) -> Any:
        assert module == functions.__name__
        return getattr(functions, name)

    monkeypatch.setattr("workflows.saved_operators.named_function", named)


def rows_of(directory: Path) -> pd.DataFrame:
    return graph_json.rows()[read_json(directory / "made.json")["columns"]]


def assert_as_made(workflow: Any, directory: Path) -> None:
    with quiet_nvtabular(), np.errstate(all="ignore"):
        made = graph_json.values_of(workflow.transform(rows_of(directory)))
    expected = read_json(directory / "made.json")["values"]
    assert list(made) == list(expected)
    for name, column in expected.items():
        assert made[name]["dtype"] == column["dtype"], name
        if column["dtype"].startswith("float"):
            apart = 0.0 if HAS_FMA else 1e-6
            np.testing.assert_allclose(made[name]["values"], column["values"], rtol=apart, err_msg=name)
        else:
            assert made[name]["values"] == column["values"], name


def test_every_operator_of_the_format_is_there(saved: dict[str, Path]) -> None:
    assert list(saved) == NAMES
    found = {kind for path in saved.values() for kind in _CLASS.findall((path / "graph.json").read_text())}
    assert OPERATORS.keys() - found == {"merlin.dag.ops.udf.UDF"}  # where somebody has taken it from merlin-core


@pytest.mark.usefixtures("_named")
@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_workflow_makes_what_it_made(saved: dict[str, Path], name: str) -> None:
    assert_as_made(load_workflow(saved[name]), saved[name])


@pytest.mark.usefixtures("_named")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in graph_json.CALLS])
def test_it_may_be_saved_again_as_a_pickle(saved: dict[str, Path], tmp_path: Path, name: str) -> None:
    with quiet_nvtabular():
        save_workflow(load_workflow(saved[name]), tmp_path / "again")
    assert_as_made(load_workflow(tmp_path / "again"), saved[name])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in graph_json.NO_PLAN])
def test_a_plan_makes_what_it_made(saved: dict[str, Path], name: str) -> None:
    workflow = load_workflow(saved[name])
    rows = rows_of(saved[name])
    plan = compile_workflow(workflow)
    if name not in graph_json.FOLDED:
        assert_same(workflow, plan, rows, widened=True)


@pytest.mark.parametrize("name", sorted(graph_json.NO_PLAN))
def test_what_has_no_plan_is_refused_by_name(saved: dict[str, Path], name: str) -> None:
    with pytest.raises((LoweringError, ArtifactError), match=graph_json.NO_PLAN[name]):
        compile_workflow(load_workflow(saved[name]))


@pytest.mark.parametrize("name", sorted(graph_json.CALLS))
def test_a_function_that_no_package_names_is_not_called(saved: dict[str, Path], name: str) -> None:
    with pytest.raises(
        ArtifactError,
        match=rf"calls {functions.__name__}:\w+, which no installed package names in the entry-point group "
        rf"{saved_functions.GROUP}",
    ):
        assert_as_made(load_workflow(saved[name]), saved[name])


REMOVED = {
    "a function": ("label", {"user": "user"}),
    "targets": ("label", {"TE_user_label": "TE_user_label", "TE_user_word_label": "TE_user_word_label"}),
    "ids of combinations": ("word", {"user": "user"}),
    "ids of one table": ("word", {"user": "user", "item": "item"}),
}


@pytest.mark.parametrize("name", REMOVED)
def test_a_plan_without_an_input_makes_of_the_rest_what_it_made(saved: dict[str, Path], name: str) -> None:
    """As a label is removed, for one; for `TargetEncoding` NVTabular itself cannot transform without it."""
    removed, left = REMOVED[name]
    workflow = load_workflow(saved[name]).remove_inputs([removed])
    plan = compile_workflow(workflow)
    given = served(plan, rows_of(saved[name]))
    made = read_json(saved[name] / "made.json")["values"]
    assert {column: values.tolist() for column, values in given.items()} == {
        column: made[other]["values"] for column, other in left.items()
    }


def test_statistics_of_another_operator_are_refused(saved: dict[str, Path], tmp_path: Path) -> None:
    """NVTabular names files by column, so one operator's overwrite another's, and the writer copies what is there."""
    shutil.copytree(saved["targets"], tmp_path / "saved")
    (file,) = (tmp_path / "saved").rglob("cat_stats.user_word.parquet/*")
    pd.read_parquet(file).rename(columns={"user_word_label_sum": "user_word_label_mean"}).to_parquet(file)
    with pytest.raises(LoweringError, match="TargetEncoding on 'user', 'word' .* statistics of another operator"):
        compile_workflow(load_workflow(tmp_path / "saved"))
