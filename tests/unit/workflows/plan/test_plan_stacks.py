"""Plans of before stacks were given up still load, and make the same of the same requests, in Python and in C++."""

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.plan import TransformPlan, tensor_call
from rankline.workflows.plan.tensors import unknown_columns
from tests.oracles.native_plan import open_native

ARCHIVE = Path(__file__).parents[3] / "golden/stacked_plans.tar.xz"
CASES = ("criteo", "hashed", "thresholds_and_buckets")
"""Normalised numbers, and codes by vocabulary; buckets by hash; vocabularies with several ids for unknown codes."""


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("golden")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    return directory / ARCHIVE.name.removesuffix(".tar.xz")


def request_and_answer(plans: Path, case: str) -> tuple[dict[str, Any], dict[str, Any]]:
    with np.load(plans / f"{case}.npz") as saved:
        arrays = {name: array.astype(object) if array.dtype.kind == "S" else array for name, array in saved.items()}
    return tuple(  # type: ignore[return-value]
        {name[len(side) :]: array for name, array in arrays.items() if name.startswith(side)}
        for side in ("in:", "out:")
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("runtime", ["python", "native"])
def test_stacked_plan_gives_the_scores_of_when_it_was_saved(plans: Path, case: str, runtime: str) -> None:
    request, answer = request_and_answer(plans, case)
    call = open_native(plans / case) if runtime == "native" else tensor_call(TransformPlan.load(plans / case))
    made = call(request)
    assert made.keys() == answer.keys()
    for name, expected in answer.items():
        assert made[name].dtype == expected.dtype
        np.testing.assert_array_equal(made[name].reshape(expected.shape), expected, name)


def test_unknown_keys_of_a_stack_are_found(plans: Path) -> None:
    request, _ = request_and_answer(plans, "criteo")
    known = {name: array[:1] for name, array in request.items()}
    known |= {"C0": np.array([[b"fffffff"]], object), "C0__valid": np.array([[True]])}
    assert "C0" in unknown_columns(TransformPlan.load(plans / "criteo"), known)


def damaged(plans: Path, target: Path, case: str, change: Any) -> Path:
    (target / "plan").mkdir()
    for path in (plans / case).iterdir():
        (target / "plan" / path.name).write_bytes(path.read_bytes())
    document = json.loads((target / "plan/plan.json").read_text())
    change(document)
    (target / "plan/plan.json").write_text(json.dumps(document))
    return target / "plan"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan["columns"][0].update(stack=7), "a stack that is not there"),
        (lambda plan: plan["columns"][0].update(row=70), "a column that its stack does not have"),
        (lambda plan: plan["stacks"][1]["steps"][1]["missing"].update(shape=[2, 2]), "another size"),
        (lambda plan: plan["stacks"][1]["steps"][1].update(values=plan["stacks"][1]["steps"][1]["unknown"]), "contra"),
        (
            lambda plan: plan["stacks"][1]["steps"][1].update(
                first_hashes=plan["stacks"][1]["steps"][1]["first_starts"],
                first_starts=plan["stacks"][1]["steps"][1]["first_hashes"],
            ),
            "an index",
        ),
    ],
)
def test_damaged_stack_is_refused_in_cpp(plans: Path, tmp_path: Path, change: Any, message: str) -> None:
    whole = TransformPlan.load(plans / "criteo")
    with pytest.raises(ArtifactError, match=rf"plan.json cannot be read \(.*{message}.*Export again"):
        open_native(damaged(plans, tmp_path, "criteo", change), plan=whole)


def test_similarity_of_before_is_refused_with_what_to_do(plans: Path, tmp_path: Path) -> None:
    def change(plan: dict[str, Any]) -> None:
        plan["steps"] = [{"kind": "StepCall", "step": {"kind": "Similarity"}, "inputs": ["I0", "I1"]}]

    plan = damaged(plans, tmp_path, "criteo", change)
    for load in (TransformPlan.load, lambda path: open_native(path, plan=TransformPlan.load(plans / "criteo"))):
        with pytest.raises(ArtifactError, match="ColumnSimilarity is no longer compiled: export with --uncompiled Col"):
            load(plan)
