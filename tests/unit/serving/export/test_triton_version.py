"""The configurations of an ensemble: steps, columns that may be left out, and candidates."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankline.serving.client import ModelSchema
from rankline.serving.client.request_builder import check
from rankline.serving.engines import engine_for
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.exporter import optional_columns
from rankline.serving.export.triton_version import Served, write_version
from rankline.serving.triton.config import EnsembleConfig, ModelConfig, Step, to_pbtxt
from rankline.workflows.core.errors import ConfigError, RequestError
from rankline.workflows.plan import ANY_WIDTH, Column, ColumnSpec, Computed, KeyIndex, TransformPlan, tensor_call
from rankline.workflows.schema.model_artifact import SAVED_MODEL
from rankline.workflows.schema.tensors import Tensor

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
    directory: Path,
    candidates: tuple[str, ...] = (),
    plan: TransformPlan = PLAN,
    optional: Sequence[str] = (),
    **choices: Any,
) -> list[ModelConfig | EnsembleConfig]:
    (directory / "model").mkdir()
    served = Served(engine=engine_for(SAVED_MODEL), path=directory / "model")
    config = ExportConfig(**{**vars(CONFIG), **choices})
    return write_version(directory, plan, served, config, name="m", version=1, candidates=candidates, optional=optional)


@pytest.mark.parametrize(
    ("choice", "runtimes"),
    [
        ({"fused": True}, [""]),  # the server's choice
        ({"fused": True, "backend": "python"}, ["model.py"]),
        ({"fused": False}, ["", ""]),
        ({"fused": False, "backend": "python"}, ["model.py", "model.py"]),
    ],
)
def test_runtime_is_named_only_for_python(tmp_path: Path, choice: dict[str, Any], runtimes: list[str]) -> None:
    *steps, _ = written(tmp_path, (), **choice)
    assert [step.runtime for step in steps if isinstance(step, ModelConfig)] == runtimes


def test_tensors_between_steps_differ_from_raw_columns(tmp_path: Path) -> None:
    user, *others = PLAN.inputs
    index = KeyIndex.build("encoded.item_trgt", np.arange(3))
    plan = replace(PLAN, inputs=(replace(user, name="encoded.item_trgt"), *others), indexes=(index, *PLAN.indexes[1:]))
    *_, ensemble = written(tmp_path, (), plan, fused=False)
    assert isinstance(ensemble, EnsembleConfig)
    first, second = ensemble.steps
    assert not {*first.inputs.values()} & {*first.outputs.values()}
    assert {*second.inputs.values()} == {*first.outputs.values()}


def dims(config: ModelConfig | EnsembleConfig) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.dims for tensor in (*config.inputs, *config.outputs)}


RAW = {"user": (1,), "user__valid": (1,), "history__values": (-1,), "history__nnzs": (1,)}


@pytest.mark.parametrize(("candidates", "width"), [((), 1), (("item",), -1)])
def test_candidate_columns_are_of_any_number(tmp_path: Path, candidates: tuple[str, ...], width: int) -> None:
    transform, predict, ensemble = written(tmp_path, candidates, fused=False)
    raw = RAW | {"item": (width,), "item__valid": (width,)}
    encoded = {"user": (1,), "item_trgt": (width,), "item_pos__values": (-1,), "item_pos__nnzs": (1,)}
    assert dims(transform) == raw | encoded
    assert dims(predict) == encoded | {"score": (width,)}
    assert dims(ensemble) == raw | {"score": (width,)}


def test_steps_and_ensemble_name_their_candidates(tmp_path: Path) -> None:
    transform, predict, ensemble = written(tmp_path, ("item",), fused=False)
    assert transform.parameters["CANDIDATES"] == "item"
    assert predict.parameters["CANDIDATES"] == "item_trgt"
    assert ensemble.parameters == {"CANDIDATES": "item", "MAX_LIST_LENGTH": "50"}
    assert 'parameters {\n  key: "CANDIDATES"\n  value {\n    string_value: "item"' in (
        tmp_path / "m" / "1" / "config.pbtxt"
    ).read_text(encoding="utf-8")


def plan_of() -> TransformPlan:
    """A text with a row for what is missing, a number that goes through as it is, and a list."""
    return TransformPlan(
        inputs=(
            ColumnSpec(name="word", dtype="object"),
            ColumnSpec(name="key", dtype="int64"),
            ColumnSpec(name="price", dtype="float32"),
            ColumnSpec(name="tags", dtype="int64", width=ANY_WIDTH),
        ),
        indexes=(
            KeyIndex.build("word", pa.array([b"a"], pa.large_binary()), 2, missing_row=1),
            KeyIndex.build("key", np.array([5, 6]), 2, missing_row=1),
        ),
        columns=(
            Column(name="word", index=0, values=np.array([70, 80, 90])),
            Column(name="key", index=1, values=np.array([7, 8, 9, 10])),
            Computed(name="price", source="price", dtype="float32"),
            Computed(name="tags", source="tags", dtype="int64", width=ANY_WIDTH),
        ),
    )


HELDOUT = pa.table(
    {
        "word": pa.array(["a", None], pa.large_string()),
        "key": pa.array([5, 6]),
        "price": pa.array([1.0, None], pa.float32()),
        "tags": pa.array([[1], None], pa.list_(pa.int64())),
    }
)


def test_optional_columns_are_those_with_missing_rows_that_the_plan_handles() -> None:
    plan = plan_of()
    assert optional_columns(plan, HELDOUT, [], []) == ("word",)
    assert optional_columns(plan, HELDOUT, ["word"], []) == ()
    assert optional_columns(plan, HELDOUT, [], ["word"]) == ()
    lacking = HELDOUT.set_column(1, "key", pa.array([5, None]))
    assert optional_columns(plan, lacking, [], []) == ("word", "key")


def test_column_left_out_is_missing_in_every_row() -> None:
    call = tensor_call(plan_of())
    rest = {
        "price": np.ones((2, 1), np.float32),
        "tags__values": np.array([[3], [4]]),
        "tags__nnzs": np.ones((2, 1), np.int32),
    }
    made = call(rest)
    nothing = {
        "word": np.array([[b"a"], [b"a"]], object),
        "word__valid": np.zeros((2, 1), np.bool_),
        "key": np.array([[5], [6]]),
        "key__valid": np.zeros((2, 1), np.bool_),
    }
    said = call({**rest, **nothing})
    assert made["word"].tolist() == said["word"].tolist() == [[80], [80]]
    assert made["key"].tolist() == said["key"].tolist() == [[8], [8]]
    with pytest.raises(RequestError, match="has no columns, expected some of"):
        call({})


def test_float_left_out_is_nan_and_list_is_missing() -> None:
    call = tensor_call(plan_of())
    with pytest.raises(RequestError, match="'tags' has missing values, first in row 1"):
        call({"price": np.ones((1, 1), np.float32)})
    lists = {"tags__values": np.array([[3]]), "tags__nnzs": np.ones((1, 1), np.int32)}
    assert np.isnan(call(lists)["price"]).all()


def test_config_and_client_know_optional_columns(tmp_path: Path) -> None:
    *_, whole = written(tmp_path, plan=plan_of(), optional=["word", "tags"])
    schema = ModelSchema.from_config(whole.to_protobuf())
    assert {column.name: column.is_required for column in schema.columns} == {
        "key": True, "price": True, "word": False, "tags": False,
    }  # fmt: skip
    (word, tags) = (next(c for c in schema.columns if c.name == name) for name in ("word", "tags"))
    assert word.mask is not None
    assert tags.lengths is not None
    check({"key": [1], "price": [1.0]}, schema)
    check({"key": [1], "price": [1.0], "word": [None], "tags": [[1, 2]]}, schema)
    with pytest.raises(RequestError, match=r"missing columns \['price'\]"):
        check({"key": [1], "word": ["a"]}, schema)


@pytest.mark.parametrize(
    ("fused", "optional", "num_steps"), [(None, (), 1), (None, ("word",), 2), (True, ("word",), 1), (False, (), 2)]
)
def test_model_is_a_separate_step_where_columns_are_optional(
    fused: bool | None, optional: tuple[str, ...], num_steps: int, tmp_path: Path
) -> None:
    *steps, _ = written(tmp_path, plan=plan_of(), optional=optional, fused=fused)
    assert len(steps) == num_steps
    assert ExportConfig(fused=fused).with_resolved_layout(optional, 3).fused == (num_steps == 1)


@pytest.mark.parametrize("fused", [True, False])
def test_dynamic_batching_applies_to_the_model_step_only(fused: bool, tmp_path: Path) -> None:
    *steps, _ = written(tmp_path, plan=plan_of(), fused=fused, batch_delay_ms=0.5)
    delays_us = [step.to_protobuf().dynamic_batching.max_queue_delay_microseconds for step in steps]
    assert delays_us == ([500] if fused else [0, 500])


GOLDEN = Path(__file__).parents[3] / "golden/serving"

PREDICT = ModelConfig(
    name="m_predict_v3",
    backend="tensorflow",
    inputs=(Tensor(name="user", dtype="int64"), Tensor(name="tags__values", dtype="int64", dims=(10,))),
    outputs=(Tensor(name="score", dtype="float32"),),
    max_batch_size=64,
    parameters={"TF_SIGNATURE_DEF": "serving_padded"},
    instances=2,
    batch_delay_us=500,
    max_queue_size=1_024,
    queue_timeout_us=10_000_000,
)
ENSEMBLE = EnsembleConfig(
    name="m",
    version=3,
    inputs=(Tensor(name="user", dtype="int64"), Tensor(name="user__valid", dtype="bool", optional=True)),
    outputs=(Tensor(name="score", dtype="float32"),),
    max_batch_size=64,
    steps=(
        Step(
            model="m_transform_v3",
            inputs={"user": "user", "user__valid": "user__valid"},
            outputs={"user": "encoded.user"},
        ),
        Step(model="m_predict_v3", inputs={"user": "encoded.user"}, outputs={"score": "score"}),
    ),
)


@pytest.mark.parametrize(("config", "golden"), [(PREDICT, "model.pbtxt"), (ENSEMBLE, "ensemble.pbtxt")])
def test_config_equals_its_golden_file(config: ModelConfig | EnsembleConfig, golden: str) -> None:
    assert to_pbtxt(config) == (GOLDEN / golden).read_text()


@pytest.mark.parametrize(
    ("dtype", "written"), [("object", "TYPE_STRING"), ("bool", "TYPE_BOOL"), ("float64", "TYPE_FP64")]
)
def test_config_types(dtype: str, written: str) -> None:
    inputs = (Tensor(name="x", dtype=dtype, dims=(-1,)),)
    config = ModelConfig(name="m", backend="b", inputs=inputs, outputs=PREDICT.outputs, max_batch_size=1)
    assert f"data_type: {written}\n  dims: -1" in to_pbtxt(config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"uncompiled": ["LambdaOp"]}, r"uncompiled is \['LambdaOp'\], expected names separated by commas"),
        ({"max_batch_size": "8"}, "max_batch_size is '8', expected an integer of at least 1"),
        ({"instances": 1.5}, "instances is 1.5, expected an integer of at least 0"),
        ({"batch_delay_ms": float("inf")}, "batch_delay_ms is inf, expected a number of at least 0"),
        ({"backend": "gpu"}, "backend is 'gpu', expected native or python"),
    ],
)
def test_option_of_a_wrong_type_or_size_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ExportConfig(**options)
