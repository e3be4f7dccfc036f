"""Models that were trained, checkpointed and exported, and what they score."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rankline.serving.engines import engine_for
from rankline.serving.export.parity import plan_inputs, rows_of
from rankline.training.config.train import TrainConfig
from rankline.training.models.sequential import DIENConfig
from rankline.training.models.tabular import DLRMConfig, MLPConfig, TorchMLPConfig
from rankline.workflows.compiler.compile import compile_workflow
from rankline.workflows.nvt.compat import quiet_nvtabular
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.schema.tensor_names import SCORE

_NUM_REQUESTS = 100


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is trained, on which of `PREPARES`, and what its ensembles run it with."""

    data: str
    config: TrainConfig
    engines: tuple[str, ...] = ()


_SMALL: dict[str, Any] = {"embedding_dim": 4, "dropout": 0.2, "embedding_dropout": 0.1}
_RUN: dict[str, Any] = {"batch_size": 200, "epochs": 2, "seed": 3, "learning_rate": 0.01, "early_stopping_patience": 0}
MODELS = {
    "mlp": Model(
        data="movielens",
        config=TrainConfig(model=MLPConfig(hidden=(8,), **_SMALL), **_RUN),
        engines=("tensorflow", "onnx"),
    ),
    "mlp-bfloat16": Model(
        data="movielens",
        config=TrainConfig(
            model=MLPConfig(hidden=(8,), **_SMALL),
            optimizer="lazy_adam",
            learning_rate_decay="cosine",
            precision="bfloat16",
            **_RUN,
        ),
    ),
    "torch_mlp": Model(
        data="movielens", config=TrainConfig(model=TorchMLPConfig(hidden=(8,), **_SMALL), **_RUN), engines=("pytorch",)
    ),
    "dlrm": Model(
        data="criteo",
        config=TrainConfig(
            model=DLRMConfig(bottom_mlp=(8, 4), top_mlp=(8,), **_SMALL), optimizer="lazy_adam", weight_decay=1.0, **_RUN
        ),
    ),
    "dien": Model(
        data="amazon",
        config=TrainConfig(
            model=DIENConfig(hidden=(8,), gru_units=4, short_history=5, aux_hidden=(4,), recency=True, **_SMALL), **_RUN
        ),
        engines=("tensorflow",),
    ),
}


def encode(prepared: PreparedData, dtypes: Mapping[str, str], rows: pa.Table | None = None) -> tuple[pa.Table, Any]:
    """Rows (held-out ones, unless given) as requests hold them, and as the plan of the data's workflow encodes them."""
    workflow = prepared.workflow()
    with quiet_nvtabular():
        plan = compile_workflow(
            workflow.remove_inputs([label.name for label in prepared.spec.labels]), dtypes, prepared.candidates
        )
    requests = rows_of(plan.inputs, prepared.heldout(), _NUM_REQUESTS) if rows is None else rows
    return requests, plan.run(*plan_inputs(plan, requests))


def scores(prepared: PreparedData, trained: TrainedModel, rows: pa.Table | None = None) -> pa.Table:
    """Requests, and what a model scores them, its scores the last column."""
    model = engine_for(trained.format).load_trained(trained.model_path)
    requests, encoded = encode(prepared, model.dtypes(prepared.spec), rows)
    return requests.append_column(SCORE, pa.array(model.score_served(encoded)))
