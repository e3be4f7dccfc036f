from pathlib import Path

import pytest

from rankline.serving.triton.config import EnsembleConfig, ModelConfig, Step, to_pbtxt
from rankline.workflows.schema.tensors import Tensor

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
def test_config_is_what_it_was(config: ModelConfig | EnsembleConfig, golden: str) -> None:
    assert to_pbtxt(config) == (GOLDEN / golden).read_text()


@pytest.mark.parametrize(
    ("dtype", "written"), [("object", "TYPE_STRING"), ("bool", "TYPE_BOOL"), ("float64", "TYPE_FP64")]
)
def test_types_have_the_names_of_configs(dtype: str, written: str) -> None:
    inputs = (Tensor(name="x", dtype=dtype, dims=(-1,)),)
    config = ModelConfig(name="m", backend="b", inputs=inputs, outputs=PREDICT.outputs, max_batch_size=1)
    assert f"data_type: {written}\n  dims: -1" in to_pbtxt(config)
