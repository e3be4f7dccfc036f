"""What the configurations of an ensemble say of candidates."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankline.serving.engines import engine_for
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.triton_version import Served, write_version
from rankline.serving.triton.config import EnsembleConfig, ModelConfig
from rankline.workflows.plan import ANY_WIDTH, Column, ColumnSpec, KeyIndex, TransformPlan
from rankline.workflows.schema.model_artifact import SAVED_MODEL

PLAN = TransformPlan(
    inputs=(
        ColumnSpec(name="user", dtype="int64"),
        ColumnSpec(name="item", dtype="int64"),
        ColumnSpec(name="history", dtype="int64", width=ANY_WIDTH),
    ),
    indexes=(
        KeyIndex.build("user", np.arange(3)),
        KeyIndex.build("item", np.arange(3)),
        KeyIndex.build("history", np.arange(3)),
    ),
    columns=(
        Column(name="user", index=0, values=np.arange(4)),
        Column(name="item_trgt", index=1, values=np.arange(4)),
        Column(name="item_pos", index=2, values=np.arange(4), width=ANY_WIDTH),
    ),
)
CONFIG = ExportConfig(instances=1, threads=1, max_list_length=50)


def written(
    directory: Path, candidates: tuple[str, ...], plan: TransformPlan = PLAN, **choices: Any
) -> list[ModelConfig | EnsembleConfig]:
    (directory / "model").mkdir()
    served = Served(engine=engine_for(SAVED_MODEL), path=directory / "model")
    config = ExportConfig(**{**vars(CONFIG), **choices})
    return write_version(directory, plan, served, config, name="m", version=1, candidates=candidates)


@pytest.mark.parametrize(
    ("choice", "runtimes"),
    [
        ({"fused": True}, [""]),  # the server's choice
        ({"fused": True, "backend": "python"}, ["model.py"]),
        ({"fused": False}, ["", ""]),
        ({"fused": False, "backend": "python"}, ["model.py", "model.py"]),
    ],
)
def test_a_runtime_is_named_only_where_it_must_be_pythons(
    tmp_path: Path, choice: dict[str, Any], runtimes: list[str]
) -> None:
    *steps, _ = written(tmp_path, (), **choice)
    assert [step.runtime for step in steps if isinstance(step, ModelConfig)] == runtimes


def test_no_tensor_between_the_steps_has_the_name_of_a_raw_column(tmp_path: Path) -> None:
    user, *others = PLAN.inputs
    index = KeyIndex.build("encoded.item_trgt", np.arange(3))
    plan = replace(
        PLAN,
        inputs=(replace(user, name="encoded.item_trgt"), *others),
        indexes=(index, *PLAN.indexes[1:]),
    )
    *_, ensemble = written(tmp_path, (), plan, fused=False)
    assert isinstance(ensemble, EnsembleConfig)
    first, second = ensemble.steps
    assert not {*first.inputs.values()} & {*first.outputs.values()}
    assert {*second.inputs.values()} == {*first.outputs.values()}


def dims(config: ModelConfig | EnsembleConfig) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.dims for tensor in (*config.inputs, *config.outputs)}


RAW = {"user": (1,), "user__valid": (1,), "history__values": (-1,), "history__nnzs": (1,)}


@pytest.mark.parametrize(("candidates", "width"), [((), 1), (("item",), -1)])
def test_candidates_and_what_is_made_of_them_are_of_any_number(
    tmp_path: Path, candidates: tuple[str, ...], width: int
) -> None:
    transform, predict, ensemble = written(tmp_path, candidates, fused=False)
    raw = RAW | {"item": (width,), "item__valid": (width,)}
    encoded = {"user": (1,), "item_trgt": (width,), "item_pos__values": (-1,), "item_pos__nnzs": (1,)}
    assert dims(transform) == raw | encoded
    assert dims(predict) == encoded | {"score": (width,)}
    assert dims(ensemble) == raw | {"score": (width,)}


def test_each_step_and_the_ensemble_name_their_own(tmp_path: Path) -> None:
    transform, predict, ensemble = written(tmp_path, ("item",), fused=False)
    assert transform.parameters["CANDIDATES"] == "item"
    assert predict.parameters["CANDIDATES"] == "item_trgt"
    assert ensemble.parameters == {"CANDIDATES": "item", "MAX_LIST_LENGTH": "50"}
    assert 'parameters {\n  key: "CANDIDATES"\n  value {\n    string_value: "item"' in (
        tmp_path / "m" / "1" / "config.pbtxt"
    ).read_text(encoding="utf-8")


def test_without_candidates_nobody_names_any(tmp_path: Path) -> None:
    configs = written(tmp_path, ())
    assert not any("CANDIDATES" in config.parameters for config in configs)
    assert configs[-1].parameters == {}


@pytest.mark.parametrize(("candidates", "most"), [((), 65_536), (("item",), 16_384)])
def test_rows_with_histories_are_fewer_to_a_request(tmp_path: Path, candidates: tuple[str, ...], most: int) -> None:
    assert {config.max_batch_size for config in written(tmp_path, candidates)} == {most}
    assert ExportConfig(max_batch_size=100).most_rows(with_candidates=True) == 100


def test_one_step_for_both_names_the_raw_ones(tmp_path: Path) -> None:
    score, ensemble = written(tmp_path, ("item",), fused=True)
    assert score.parameters["CANDIDATES"] == "item"
    assert dims(score) == RAW | {"item": (-1,), "item__valid": (-1,), "score": (-1,)} == dims(ensemble)
