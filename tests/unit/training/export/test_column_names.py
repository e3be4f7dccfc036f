"""Columns may have any name: each framework's model is built, saved, loaded and compared under awkward ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import torch
from numpy.typing import NDArray

from rankline.serving.engines import engine_for
from rankline.training.export.onnx import _load_pyfunc as load_onnx
from rankline.training.export.saved_model import _load_pyfunc as load_saved_model
from rankline.training.export.saved_model import export_saved_model
from rankline.training.export.torchscript import _load_pyfunc as load_torch_script
from rankline.training.export.torchscript import export_torch_script
from rankline.training.models import MODELS
from rankline.training.models.config import NetworkConfig, StepConfig
from rankline.training.models.factorization.served_tables import served_model
from rankline.training.models.frameworks import TENSORFLOW
from rankline.training.models.lightgbm import LightGBMConfig
from rankline.training.models.lightgbm.onnx import to_onnx
from rankline.training.models.tabular import MLPConfig, TorchMLPConfig
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec
from rankline.workflows.schema.model_artifact import ONNX, SAVED_MODEL, TORCH_SCRIPT
from rankline.workflows.schema.ragged import Ragged, padded_rows
from rankline.workflows.schema.targets import MULTICLASS, Head
from tests.factories.training.sequences import make_spec
from tests.oracles.tolerance import SCORE_ROUNDING

LAYERS = ("output", "features", "dense", "dropout", "linear", "output_0", "input_1", "scorer")
PYTHON = ("class", "from", "self", "None", "args", "kwargs", "name", "training", "inputs")
TORCH = ("torch", "NoneType", "inf", "ops", "fork", "aten", "getattr", "int", "annotate", "weight", "_0")
LOOKS = ("Fee", "fee", "FEE", "monthly fee", "ts/age", "价格", "1st", "x", "width_4_embedding", "as_hex_41")
IDS = (*LAYERS, *PYTHON, *TORCH, *LOOKS)
LISTS = ("lambda", "tags", "Tags", "is not")
NUMBERS = ("numbers", "is", "nan", "x_embedding", "Total", "total", "return", "score_a", "bias", "0")
HEAD = Head("score", MULTICLASS, ("a", "b", "c"))
NUM_IDS, NUM_ROWS = 20, 7


def spec_of(lists: tuple[str, ...] = LISTS, numbers: tuple[str, ...] = NUMBERS) -> FeatureSpec:
    ids = [Feature(name=name, dtype="int64", cardinality=NUM_IDS, embedding_dim=4) for name in (*IDS, *lists)]
    ids = [replace(of, is_list=True, max_length=4) if of.name in lists else of for of in ids]
    spec = FeatureSpec(
        features=(*ids, *(Feature(name=name, dtype="float32") for name in (*numbers, HEAD.column))),
        channels={"categorical": (*IDS, *lists), "continuous": numbers, "label": (HEAD.column,)},
    )
    return replace(spec, metadata=replace(spec.metadata, heads=(HEAD,)))


SPEC = spec_of()


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    lists = {name: [rng.integers(1, NUM_IDS, n % 4 + 1) for n in range(NUM_ROWS)] for name in LISTS}
    ids = {name: rng.integers(1, NUM_IDS, NUM_ROWS) for name in IDS}
    return pd.DataFrame({**ids, **lists, **{name: rng.random(NUM_ROWS, np.float32) for name in NUMBERS}})


def batch_of(rows: pd.DataFrame) -> dict[str, Any]:
    """As the loader gives it to Keras."""
    tensors: dict[str, Any] = {}
    for name in rows:
        if name in LISTS:
            tensors[f"{name}__values"] = tf.constant(np.concatenate(rows[name].to_numpy())[:, None])
            tensors[f"{name}__nnzs"] = tf.constant([[len(values)] for values in rows[name]], tf.int32)
        else:
            tensors[str(name)] = tf.constant(rows[name].to_numpy()[:, None])
    return tensors


def assert_scored(path: Path, load_pyfunc: Any, rows: pd.DataFrame, expected: NDArray[Any]) -> None:
    """Through MLflow's interface and the engine's, whose tensors are those that a server's config names."""
    model, tensors = engine_for(path.name).load_trained(path), padded_rows(rows)
    columns = {name: Ragged.of_rows(rows[name]).padded() if name in LISTS else rows[name].to_numpy() for name in rows}
    for scores in (
        np.array(load_pyfunc(str(path)).predict(rows)[HEAD.column].tolist()),
        model.score_offline(rows),
        model.score_served({str(name): column for name, column in columns.items()}),
        model.served_call(list(tensors))(*tensors.values())[0],
    ):
        np.testing.assert_allclose(scores, expected, atol=SCORE_ROUNDING)
    assert set(model.dtypes(SPEC)) == set(rows)


@pytest.mark.slow
def test_tensorflow(rows: pd.DataFrame, tmp_path: Path) -> None:
    options: dict[str, Any] = {"dropout": 0.5, "embedding_dropout": 0.5, "linear_terms": True, "embedding_init": 1.0}
    model = MLPConfig(**options).build(SPEC, StepConfig())
    export_saved_model(model, SPEC, tmp_path / SAVED_MODEL)
    batch = batch_of(rows)
    expected = model(batch).numpy()
    assert_scored(tmp_path / SAVED_MODEL, load_saved_model, rows, expected)


def test_pytorch(rows: pd.DataFrame, tmp_path: Path) -> None:
    model = TorchMLPConfig(linear_terms=True, embedding_init=1.0).build(SPEC, StepConfig()).eval()
    export_torch_script(model, SPEC, tmp_path / TORCH_SCRIPT)
    inputs: dict[str, Any] = {}
    for name in rows:
        lists = Ragged.of_rows(rows[name]) if name in LISTS else None
        column = rows[name].to_numpy()[:, None]
        inputs[str(name)] = (
            torch.from_numpy(column)
            if lists is None
            else (torch.from_numpy(lists.values), torch.from_numpy(lists.offsets[:-1, None]))
        )
    with torch.no_grad():
        expected = torch.softmax(model(inputs).logit, dim=1).numpy()
    assert_scored(tmp_path / TORCH_SCRIPT, load_torch_script, rows, expected)


def test_lightgbm(rows: pd.DataFrame, tmp_path: Path) -> None:
    forests = LightGBMConfig(min_leaf_rows=1, trees=2).build(SPEC, StepConfig())
    matrix = forests.matrix({n: Ragged.of_rows(rows[n]) if n in LISTS else rows[n].to_numpy() for n in rows})
    forests.begin(matrix, np.arange(NUM_ROWS, dtype=np.float32)[:, None] % 3, seed=0)
    forests.learn(1)
    (tmp_path / ONNX).write_bytes(to_onnx(forests).SerializeToString())
    assert_scored(tmp_path / ONNX, load_onnx, rows, forests.scores(matrix))


def with_awkward_names(spec: FeatureSpec) -> FeatureSpec:
    """Rows with histories whose columns have the names of layers and Python's keywords."""
    names = dict(zip((feature.name for feature in spec.features), (*LAYERS, *PYTHON), strict=False))
    return replace(
        spec,
        features=tuple(replace(feature, name=names[feature.name]) for feature in spec.features),
        channels={channel: tuple(names[name] for name in of) for channel, of in spec.channels.items()},
        metadata=replace(spec.metadata, group_by=names["user_id"]),
    )


NETWORKS = [name for name, model in MODELS.items() if issubclass(model, NetworkConfig) and model is not MLPConfig]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NETWORKS if MODELS[name].framework is TENSORFLOW])
def test_layer_names_never_collide_with_columns(name: str) -> None:
    config = MODELS[name]
    if config.takes_histories:
        spec, options = with_awkward_names(make_spec()), {"recency": True, "l2_embedding": 0.1}
    else:
        spec, options = spec_of(lists=() if name == "dlrm" else LISTS), {"linear_terms": True, "dropout": 0.1}
    model = config(**options).build(spec, StepConfig())
    assert {*model.input} == {*tensor_names(spec)}


def test_tables_that_are_served_as_a_network() -> None:
    spec = spec_of(numbers=())
    served = served_model(spec, {feature.name: np.ones((NUM_IDS, 3)) for feature in spec.categorical})
    assert {*served.input} == {*tensor_names(spec)}


def tensor_names(spec: FeatureSpec) -> list[str]:
    return [
        feature.name + part
        for feature in (*spec.categorical, *spec.continuous)
        for part in (("__values", "__nnzs") if feature.is_list else ("",))
    ]
