"""Functions in saved workflows: what a file says of them is never run, and does not keep the rest from being served."""

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pytest

from rankline.workflows.compiler.compile import compile_workflow
from rankline.workflows.core.errors import ArtifactError, LoweringError
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import load_workflow, save_workflow
from tests.harness.hostile.pickles import Made, Name, pickled
from tests.harness.process.audit_hooks import record_side_effects
from tests.harness.process.programs import leave_installed
from tests.oracles.nvtabular import fitted, transformed

from merlin.dag import iter_nodes  # isort: skip
from merlin.dag.ops.subgraph import Subgraph  # isort: skip

ROWS = pd.DataFrame({"user": [1, 1, 2, 7], "age": [3.0, 4.5, 5.0, 1.0], "rating": [1.0, 5.0, 3.0, 4.0]})
SCALE = 3


def features() -> Any:
    return (["user"] >> ops.Categorify()) + (["age"] >> ops.Normalize())


def saved(graph: Callable[[], Any], directory: Path) -> nvt.Workflow:
    """A workflow, fitted and saved in `directory / "saved"`."""
    workflow = fitted(graph, ROWS, directory / "fit")
    with quiet_nvtabular():
        save_workflow(workflow, directory / "saved")
    return workflow


def recursive() -> Callable[[Any], Any]:
    limits = np.arange(3)

    def until(column: Any) -> Any:
        return column if SCALE else until(column + limits.sum())

    return until


LABELS: dict[str, Callable[[], Any]] = {
    "of one line": lambda: ["rating"] >> ops.LambdaOp(lambda column: (column > 3).astype("int8")),
    "with globals and modules": lambda: ["rating"] >> ops.LambdaOp(lambda column: np.log(column) * SCALE + len(ROWS)),
    "that calls itself": lambda: ["rating"] >> ops.LambdaOp(recursive()),
    "in the middle": lambda: (
        ["rating"] >> ops.LambdaOp(lambda column: column * 1.0) >> ops.FillMissing() >> ops.LogOp()
    ),
}


@pytest.mark.parametrize("name", LABELS)
def test_columns_that_need_no_function_are_served_as_before(tmp_path: Path, name: str) -> None:
    """NVIDIA's MovieLens notebook makes its label with a lambda."""
    workflow = saved(lambda: features() + LABELS[name](), tmp_path)
    loaded = load_workflow(tmp_path / "saved")
    with pytest.raises(LoweringError, match=r"operator LambdaOp \(columns \['rating'\]\) is a Python function"):
        compile_workflow(loaded)
    plan = compile_workflow(loaded.remove_inputs(["rating"]))
    served = plan.run({"user": ROWS["user"].to_numpy(), "age": ROWS["age"].to_numpy()})
    expected = transformed(workflow, ROWS)
    assert list(served) == ["user", "age"]
    assert {name: served[name].tolist() for name in served} == {name: expected[name] for name in served}


CALLED: dict[str, tuple[Callable[[], Any], str]] = {
    "LambdaOp": (
        LABELS["of one line"],
        r"LambdaOp on \['rating'\] was saved with its code, which Rankline does not run",
    ),
    "Filter": (
        lambda: ["age", "rating"] >> ops.Filter(lambda frame: frame["rating"] > 3),
        r"Filter on \['age', 'rating'\] was saved with its code, which Rankline does not run",
    ),
    "Subgraph": (
        lambda: ["user"] >> Subgraph("inner", ["user"] >> ops.Categorify(), loop_until=lambda frame: len(frame) > 0),
        r"Subgraph on \['user'\] was saved with its code, which Rankline does not run",
    ),
    "a name": (lambda: ["rating"] >> ops.LambdaOp(pd.isna), r"LambdaOp on \['rating'\] calls"),
}


@pytest.mark.parametrize("name", CALLED)
def test_function_in_the_file_is_refused_where_it_is_called(tmp_path: Path, name: str) -> None:
    graph, error = CALLED[name]
    saved(graph, tmp_path)
    loaded = load_workflow(tmp_path / "saved")
    with pytest.raises(ArtifactError, match=error):
        transformed(loaded, ROWS)
    with pytest.raises((LoweringError, ArtifactError), match=rf"{name}|subgraph 'inner' uses loop_until|LambdaOp"):
        compile_workflow(loaded)


def test_function_stays_where_it_is_when_a_workflow_is_saved_again(tmp_path: Path) -> None:
    saved(LABELS["of one line"], tmp_path)
    with quiet_nvtabular():
        save_workflow(load_workflow(tmp_path / "saved"), tmp_path / "again")
    with pytest.raises(ArtifactError, match="was saved with its code, which Rankline does not run"):
        transformed(load_workflow(tmp_path / "again"), ROWS)


SHOP = """
from pathlib import Path

Path(__file__).with_name("imported").touch()


def is_liked(column):
    return (column > 3).astype("int8")


def half(column):
    return column / 2


THREE = 3
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package, which names some of its functions."""
    named = ("liked = shop_of_functions:is_liked", "three = shop_of_functions:THREE", "gone = shop_of_functions:gone")
    leave_installed(tmp_path / "installed", "shop-of-functions", "\n".join(["[rankline.functions]", *named, ""]))
    (tmp_path / "installed" / "shop_of_functions.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    monkeypatch.delitem(sys.modules, "shop_of_functions", raising=False)
    return tmp_path / "installed"


def test_function_that_a_package_names_is_itself(shop: Path, tmp_path: Path) -> None:
    import shop_of_functions

    workflow = fitted(lambda: ["rating"] >> ops.LambdaOp(shop_of_functions.is_liked), ROWS, tmp_path / "fit")
    with quiet_nvtabular():
        save_workflow(workflow, tmp_path / "saved")
    loaded = load_workflow(tmp_path / "saved")
    assert transformed(loaded, ROWS) == {"rating": [0, 1, 0, 1]}


def test_function_that_a_package_does_not_name_is_not_even_imported(shop: Path, tmp_path: Path) -> None:
    import shop_of_functions

    workflow = fitted(lambda: ["rating"] >> ops.LambdaOp(shop_of_functions.half), ROWS, tmp_path / "fit")
    with quiet_nvtabular():
        save_workflow(workflow, tmp_path / "saved")
    (shop / "imported").unlink()
    del sys.modules["shop_of_functions"]
    loaded = load_workflow(tmp_path / "saved")
    with pytest.raises(ArtifactError, match="calls shop_of_functions:half, which no installed package registers"):
        transformed(loaded, ROWS)
    assert not (shop / "imported").exists()


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("THREE", "shop_of_functions:THREE .* is not a function"),
        ("gone", "shop_of_functions:gone, .* cannot be imported"),
    ],
)
def test_package_entry_that_is_not_a_function_is_reported(shop: Path, tmp_path: Path, name: str, error: str) -> None:
    (tmp_path / "workflow.pkl").write_bytes(pickled(lambda_op(Name("shop_of_functions", name))))
    with pytest.raises(ArtifactError, match=error):
        load_workflow(tmp_path)


def lambda_op(function: Any, **others: Any) -> Made:
    return Made(Name("merlin.dag.ops.udf", "UDF"), (), {"f": function, **others}, pickle.NEWOBJ)


SYSTEM = Made(Name("posix", "system"), ("touch /nobody/was/here",))
CODE = Made(Name("cloudpickle.cloudpickle", "_builtin_type"), ("CodeType",))
HOSTILE: dict[str, tuple[Any, str]] = {
    "a call": (lambda_op(SYSTEM), "contains UDF, expected an NVTabular workflow"),
    "calls in calls": (
        lambda_op(Made(Name("cloudpickle.cloudpickle", "_make_function"), (SYSTEM, {"x": [SYSTEM]}), {"y": SYSTEM})),
        "contains UDF, expected",
    ),
    "an attribute": (lambda_op(Name("os", "system"), dependency=SYSTEM), r"refers to posix\.system, which is not data"),
    "another operator": (
        Made(Name("nvtabular.ops.clip", "Clip"), (), {"f": SYSTEM}, pickle.NEWOBJ),
        r"refers to posix\.system, which is not data",
    ),
    "a function and elsewhere": ([lambda_op(SYSTEM), SYSTEM], r"refers to posix\.system, which is not data"),
    "a method": (lambda_op(SYSTEM, transform=1), "contains .*UDF with arguments or state"),
    "a result that is called": (
        b"".join((pickled(CODE)[:-1], pickle.EMPTY_TUPLE, pickle.REDUCE, pickle.STOP)),
        "refers to the result of a call, which is not data",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_code_is_not_run_wherever_it_stands(tmp_path: Path, name: str) -> None:
    content, error = HOSTILE[name]
    (tmp_path / "workflow.pkl").write_bytes(content if isinstance(content, bytes) else pickled(content))
    with quiet_nvtabular(), record_side_effects() as acts, pytest.raises(ArtifactError, match=error):
        load_workflow(tmp_path)
    assert [act for act in acts if not act.startswith(("open", "os.listdir", "os.scandir"))] == []


class _Touching:
    """A function whose pickle would touch a file."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._marker),)


@pytest.mark.parametrize("where", ["function", "default", "closure"])
def test_saved_workflow_whose_function_would_act_loads_and_does_not(tmp_path: Path, where: str) -> None:
    marker = tmp_path / "pwned"
    touching = _Touching(marker)

    def in_default(column: Any, _frame: Any = touching) -> Any:
        return column

    saved(lambda: features() + LABELS["of one line"](), tmp_path)
    loaded = load_workflow(tmp_path / "saved")
    (operator,) = (node.op for node in iter_nodes([loaded.output_node]) if isinstance(node.op, ops.LambdaOp))
    operator.f = {"function": touching, "default": in_default, "closure": lambda column: (column, touching)}[where]
    (tmp_path / "saved" / "workflow.pkl").write_bytes(cloudpickle.dumps(loaded))
    with record_side_effects() as acts:
        hostile = load_workflow(tmp_path / "saved")
        with pytest.raises(ArtifactError, match="which Rankline does not run"):
            transformed(hostile, ROWS)
        compile_workflow(hostile.remove_inputs(["rating"]))
    kinds = {act.partition(" ")[0] for act in acts}  # what follows may be the path of executors.py
    assert not [kind for kind in kinds if "mkdir" in kind or "exec" in kind]
    assert not marker.exists()
