"""Models as ONNX score as they did before, and what the file of a repository may hold."""

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tensorflow as tf
import tf_keras as keras
import torch
from onnx import TensorProto, parser

from rankline.serving.engines import engine_for
from rankline.serving.engines.onnxruntime import ENGINE as ONNX
from rankline.serving.engines.onnxruntime.offline import Model
from rankline.serving.engines.onnxruntime.session import check_file
from rankline.training.export.saved_model import export_saved_model
from rankline.training.export.torchscript import export_torch_script
from rankline.training.models.config import ModelConfig, StepConfig
from rankline.training.models.tabular import DCNv2Config, DLRMConfig, MLPConfig, TorchMLPConfig
from rankline.workflows.core.errors import ArtifactError, ExportError
from rankline.workflows.schema.feature_spec import FILE_NAME, Feature, FeatureSpec
from rankline.workflows.schema.model_artifact import KIND, SAVED_MODEL, TORCH_SCRIPT, TrainedModel
from rankline.workflows.schema.ragged import Padded
from rankline.workflows.schema.tensor_names import PADDED_SIGNATURE
from rankline.workflows.storage.artifacts import publish
from tests.factories.specs import scalar_spec
from tests.oracles.tolerance import SCORE_ROUNDING

SPEC = FeatureSpec(
    features=(
        Feature(name="userId", dtype="int64", cardinality=20, embedding_dim=4),
        Feature(name="tags", dtype="int64", cardinality=9, embedding_dim=3, is_list=True, max_length=6),
        Feature(name="words", dtype="int64", cardinality=9, embedding_dim=5, is_list=True, max_length=6),
        Feature(name="price", dtype="float32"),
        Feature(name="label", dtype="float32"),
    ),
    channels={"categorical": ("userId", "tags", "words"), "continuous": ("price",), "label": ("label",)},
)
TAGS = {"tags__values": tf.TensorSpec([None, None], tf.int64), "tags__nnzs": tf.TensorSpec([None, 1], tf.int32)}


def publish_model(path: Path, written: str, write: Callable[[Path], object], spec: FeatureSpec = SPEC) -> TrainedModel:
    details = {"format": written, "run_id": "r", "tracking_uri": "", "metrics": {}}
    with publish(path, KIND, details=details) as staging:
        (staging / FILE_NAME).write_text(spec.to_yaml(), encoding="utf-8")
        write(staging)
    return TrainedModel.load(path)


def keras_mlp(path: Path) -> TrainedModel:
    keras.utils.set_random_seed(0)
    model = MLPConfig(hidden=(16, 16), linear_terms=True).build(SPEC, StepConfig())
    for variable in model.trainable_variables:
        variable.assign(tf.random.normal(variable.shape, stddev=0.3))
    return publish_model(path, SAVED_MODEL, lambda at: export_saved_model(model, SPEC, at / SAVED_MODEL))


def torch_mlp_script(path: Path) -> TrainedModel:
    torch.manual_seed(0)
    model = TorchMLPConfig(hidden=(16, 16), embedding_init=1.0, linear_terms=True).build(SPEC, StepConfig())
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.normal_(std=0.3)
    return publish_model(path, TORCH_SCRIPT, lambda at: export_torch_script(model, SPEC, at / TORCH_SCRIPT))


MAKERS = {"tensorflow": keras_mlp, "pytorch": torch_mlp_script}


@pytest.fixture(scope="module", params=MAKERS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return MAKERS[request.param](tmp_path_factory.mktemp("trained") / "model")


@pytest.fixture(scope="module")
def converted(trained: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("converted") / ONNX.format
    ONNX.convert(trained, path)
    return path


def columns(num_rows: int, width: int, longest: int) -> dict[str, Any]:
    """Random rows as a plan hands them on; the padding holds ids that no table has."""
    rng = np.random.default_rng(num_rows)
    made: dict[str, Any] = {"userId": rng.integers(0, 20, num_rows), "price": rng.random(num_rows, np.float32)}
    for name in ("tags", "words"):
        lengths = rng.integers(0, longest + 1, num_rows).astype(np.int32)
        values = np.where(np.arange(width) < lengths[:, None], rng.integers(0, 9, (num_rows, width)), 10**9)
        made[name] = Padded(values, lengths)
    return made


@pytest.mark.parametrize(
    ("num_rows", "width", "longest"), [(0, 3, 3), (1, 0, 0), (1, 1, 1), (5, 4, 0), (7, 3, 3), (999, 6, 6)]
)
def test_onnx_scores_as_the_trained_model(
    trained: TrainedModel, converted: Path, num_rows: int, width: int, longest: int
) -> None:
    rows = columns(num_rows, width, longest)
    expected = engine_for(trained.format).load(trained.model_path).score_served(rows)
    scores = ONNX.load(converted).score_served(rows)
    assert (scores.shape, scores.dtype) == ((num_rows,), np.float32)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=SCORE_ROUNDING)


SCALARS = scalar_spec([(20 + n, 4) for n in range(6)], 3)
FUSED: list[ModelConfig] = [
    MLPConfig(embedding_dim=8, hidden=(16, 16)),
    DLRMConfig(embedding_dim=8, bottom_mlp=(16,), top_mlp=(16, 16)),
    DCNv2Config(embedding_dim=8, hidden=(16, 16), cross_layers=2),
]


@pytest.mark.parametrize("config", FUSED, ids=lambda config: config.name)
def test_onnx_of_fused_tables_scores_as_the_trained_model(config: ModelConfig, tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    model = config.build(SCALARS, StepConfig(precision="bfloat16"))
    for variable in model.trainable_variables:
        variable.assign(tf.random.normal(variable.shape, stddev=0.3))
    trained = publish_model(
        tmp_path / "m", SAVED_MODEL, lambda at: export_saved_model(model, SCALARS, at / SAVED_MODEL), SCALARS
    )
    ONNX.convert(trained, tmp_path / "model.onnx")
    expected, converted = engine_for(SAVED_MODEL).load(trained.model_path), ONNX.load(tmp_path / "model.onnx")
    rng = np.random.default_rng(0)
    for num_rows in (0, 1, 2, 500):
        rows = {f"C{n}": rng.integers(0, 20 + n, num_rows) for n in range(6)}
        rows |= {f"I{n}": rng.random(num_rows, np.float32) for n in range(3)}
        scores = converted.score_served(rows)
        assert (scores.shape, scores.dtype) == ((num_rows,), np.float32)
        np.testing.assert_allclose(scores, expected.score_served(rows), rtol=0, atol=SCORE_ROUNDING)
    assert scores.std() > 0.01


def test_onnx_tensors_are_those_of_the_padded_layout(converted: Path) -> None:
    graph = onnx.load(converted).graph
    assert {tensor.name: described(tensor) for tensor in graph.input} == {
        "userId": ("INT64", ["rows", 1]),
        "tags__values": ("INT64", ["rows", "width of tags__values"]),
        "tags__nnzs": ("INT32", ["rows", 1]),
        "words__values": ("INT64", ["rows", "width of words__values"]),
        "words__nnzs": ("INT32", ["rows", 1]),
        "price": ("FLOAT", ["rows", 1]),
    }
    assert [(tensor.name, described(tensor)) for tensor in graph.output] == [("score", ("FLOAT", ["rows", 1]))]


def described(tensor: Any) -> tuple[str, list[str | int]]:
    kind = tensor.type.tensor_type
    return onnx.TensorProto.DataType.Name(kind.elem_type), [dim.dim_param or dim.dim_value for dim in kind.shape.dim]


def tf_model(path: Path, function: Callable[..., Any], specs: Mapping[str, Any], module: Any = None) -> TrainedModel:
    """A SavedModel that has nothing but the padded signature."""
    module = module or tf.Module()
    signature = tf.function(function, autograph=False).get_concrete_function(**specs)

    def save(staging: Path) -> None:
        tf.saved_model.save(module, str(staging / SAVED_MODEL), signatures={PADDED_SIGNATURE: signature})

    return publish_model(path, SAVED_MODEL, save)


@pytest.mark.parametrize(
    ("combine", "divisor_of"),
    [
        (tf.sparse.segment_sum, np.ones_like),
        (tf.sparse.segment_mean, lambda lengths: np.maximum(lengths, 1)),
        (tf.sparse.segment_sqrt_n, lambda lengths: np.sqrt(np.maximum(lengths, 1))),
    ],
)
@pytest.mark.parametrize("is_looked_up_before", [True, False])
def test_onnx_combines_lists_deterministically_without_sorting(
    combine: Any, divisor_of: Callable[[Any], Any], is_looked_up_before: bool, tmp_path: Path
) -> None:
    module = tf.Module()
    table = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    module.table = tf.Variable(table)

    def padded(tags__values, tags__nnzs):  # type: ignore[no-untyped-def]
        places = tf.where(tf.range(tf.shape(tags__values)[1]) < tags__nnzs)
        ids, num_rows = tf.gather_nd(tags__values, places), tf.shape(tags__values)[0]
        table, indices = tf.convert_to_tensor(module.table), ids
        if is_looked_up_before:
            table, indices = tf.gather(module.table, ids), tf.range(tf.size(ids))
        return {"score": combine(table, indices, places[:, 0], num_segments=num_rows)}

    ONNX.convert(tf_model(tmp_path / "m", padded, TAGS, module), tmp_path / "model.onnx")
    nodes = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert nodes.isdisjoint({"TopK", "Unique", "ScatterND", "ScatterElements", "Loop", "NonZero"})

    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 6, 5000).astype(np.int32)
    values = rng.integers(0, 9, (5000, 5))
    sums = (table[values] * (np.arange(5) < lengths[:, None])[:, :, None]).sum(axis=1)
    call = ONNX.load(tmp_path / "model.onnx").served_call(["tags__values", "tags__nnzs"])
    first = call(values, lengths[:, None])[0]
    np.testing.assert_allclose(first, sums / divisor_of(lengths)[:, None], rtol=0, atol=SCORE_ROUNDING)
    for _ in range(20):
        np.testing.assert_array_equal(call(values, lengths[:, None])[0], first)


def test_operator_without_an_onnx_form_is_refused(tmp_path: Path) -> None:
    specs = {"x": tf.TensorSpec([None, 1], tf.float32)}
    trained = tf_model(tmp_path / "m", lambda x: {"score": tf.math.betainc(x, x, x)}, specs)
    with pytest.raises(ExportError, match=r"cannot be converted to ONNX \(.*Betainc.* Use the engine tensorflow\.$"):
        ONNX.convert(trained, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_embedding_bag_of_another_kind_is_refused(tmp_path: Path) -> None:
    class Largest(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = torch.nn.EmbeddingBag(20, 1, mode="max")

        def forward(self, userId):  # type: ignore[no-untyped-def]  # noqa: N803
            return self.bag(userId)

    def save(staging: Path) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is deprecated")
            torch.jit.trace(Largest(), torch.zeros((2, 1), dtype=torch.int64)).save(str(staging / "model.pt"))

    with pytest.raises(
        ExportError, match="unsupported embedding bag: only sum and mean without.*Use the engine pytorch"
    ):
        ONNX.convert(publish_model(tmp_path / "m", TORCH_SCRIPT, save), tmp_path / "model.onnx")


def test_model_beyond_the_size_of_onnx_is_refused(tmp_path: Path) -> None:
    trained = publish_model(tmp_path / "m", TORCH_SCRIPT, lambda at: (at / "model.pt").write_bytes(b""))
    os.truncate(trained.model_path, 3 * 2**30)  # takes no room on disk
    with pytest.raises(
        ExportError, match=r"is 3\.0 GiB, but an ONNX file can be at most 2 GiB\. Use the engine pytorch\."
    ):
        ONNX.convert(trained, tmp_path / "model.onnx")


def test_load_refuses_invalid_or_mismatched_onnx(tmp_path: Path, converted: Path) -> None:
    for name, content in (("absent", None), ("damaged", b"\xff"), ("empty", b"")):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ArtifactError, match=rf"{name} is not a loadable ONNX model \(\w.+\). Export again"):
            ONNX.load(tmp_path / name)
    with pytest.raises(
        ArtifactError, match=r"the model expects the inputs \['price', .*the workflow produces \['userId'\]"
    ):
        ONNX.load(converted).score_served({"userId": np.zeros(1, np.int64)})


CONSTANT = "y = Mul (a, w)"
FUNCTION = '<domain: "f", opset_import: ["" : 17]> f (x) => (z) { z = Neg (x) }'
BRANCHES = """c = Constant <value = bool {1}> ()
    y = If (c) <then_branch = t () => (float[1] r) { r = Constant <value = float[1] {1}> () },
                else_branch = e () => (float[N, 1] r) { r = Identity (a) }>"""


def model_of(body: str = "y = Neg (a)", functions: str = "") -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[N, 1] a) => (float[N, 1] y) {{ {body} }} {functions}'
    return parser.parse_model(text)


def put_elsewhere(tensor: TensorProto) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="model.onnx")


def with_initializer() -> onnx.ModelProto:
    model = model_of(CONSTANT)
    put_elsewhere(model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[1]))
    return model


def with_constant_in_a_branch() -> onnx.ModelProto:
    model = model_of(BRANCHES)
    branch = next(attribute.g for attribute in model.graph.node[1].attribute if attribute.name == "then_branch")
    put_elsewhere(branch.node[0].attribute[0].t)
    return model


def with_sparse_initializer() -> onnx.ModelProto:
    model = model_of(CONSTANT)
    put_elsewhere(model.graph.sparse_initializer.add().indices)
    return model


def with_training() -> onnx.ModelProto:
    model = model_of()
    model.training_info.add()
    return model


HONEST = model_of(BRANCHES).SerializeToString()
REFUSED = {
    "functions": (model_of(functions=FUNCTION).SerializeToString(), "field 25 of the model"),
    "training": (with_training().SerializeToString(), "field 20 of the model"),
    "a weight": (with_initializer().SerializeToString(), "weights are in another file"),
    "a constant": (with_constant_in_a_branch().SerializeToString(), "weights are in another file"),
    "a sparse weight": (with_sparse_initializer().SerializeToString(), "weights are in another file"),
    "two graphs": (HONEST + HONEST, "field 1 of the model is repeated or is never written by Rankline"),
    "a graph behind it": (HONEST + b"\x3a\x00", "field 7 of the model"),
    "a group": (b"\x0b", "a field of unknown wire type 3"),
    "a tag beyond 32 bits": (b"\xba\x80\x80\x80\x7f\x00", "the invalid field tag"),
    "half of it": (HONEST[:-5], "truncated"),
    "a length beyond it": (b"\x3a\xff\xff\xff\xff\x07", "truncated"),
    "a number without end": (b"\x08" + b"\xff" * 20, "too long"),
    "nothing": (b"", "empty"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_onnx_file_not_written_by_rankline_is_refused(what: str, tmp_path: Path) -> None:
    content, message = REFUSED[what]
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=message):
        Model(path)


def test_onnx_file_check_skips_numeric_attributes(tmp_path: Path) -> None:
    """Forests have millions of them, a field each."""
    model = model_of()
    attribute = model.graph.node[0].attribute.add(name="numbers", ints=[1, -1, 2**40], floats=[0.5, -1e30])
    attribute.strings.extend([b"BRANCH_LEQ", b"\x40" * 200])
    put_elsewhere(attribute.t)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match="weights are in another file"):
        check_file(path)
    attribute.ClearField("t")
    path.write_bytes(model.SerializeToString())
    check_file(path)


def test_onnx_converts_lists_combined_in_another_way(tmp_path: Path) -> None:
    module = tf.Module()
    module.table = tf.Variable(tf.range(18.0)[:, None])

    def padded(tags__values, tags__nnzs):  # type: ignore[no-untyped-def]
        num_rows, width = tf.unstack(tf.shape(tags__values))
        rows = tf.repeat(tf.range(num_rows), width)
        ids = tf.reshape(tags__values, [-1]) + tf.cast(tf.repeat(tags__nnzs[:, 0], width), tf.int64)
        return {"score": tf.sparse.segment_sum(tf.convert_to_tensor(module.table), ids, rows, num_segments=num_rows)}

    ONNX.convert(tf_model(tmp_path / "m", padded, TAGS, module), tmp_path / "model.onnx")
    call = ONNX.load(tmp_path / "model.onnx").served_call(["tags__values", "tags__nnzs"])
    scores = call(np.array([[1, 2], [3, 4]]), np.array([[0], [9]], np.int32))[0]
    np.testing.assert_array_equal(scores, [[3], [25]])


def test_onnx_keeps_unused_inputs(tmp_path: Path) -> None:
    specs = {name: tf.TensorSpec([None, 1], tf.float32) for name in ("Used", "unused")}
    trained = tf_model(tmp_path / "m", lambda Used, unused: {"score": Used / 2}, specs)  # noqa: N803
    ONNX.convert(trained, tmp_path / "model.onnx")
    ones = np.ones(2, np.float32)
    assert ONNX.load(tmp_path / "model.onnx").score_served({"Used": ones, "unused": ones}).tolist() == [0.5, 0.5]
