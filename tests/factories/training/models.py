"""Tiny models for tests against real servers."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.serving.triton.config import ModelConfig
from rankline.workflows.core.errors import ServerError
from rankline.workflows.schema.tensors import Tensor

TABLE_ROWS = 5
MAX_BATCH_SIZE = 64


def write_model(repository: Path, config: ModelConfig, edit: Callable[[Any], None] | None = None) -> Path:
    """Write `config.pbtxt`, changed by `edit`, and make the version directory, which is returned."""
    version = repository / config.name / "1"
    version.mkdir(parents=True)
    message = config.to_protobuf()
    if edit is not None:
        edit(message)
    (repository / config.name / "config.pbtxt").write_text(text_format.MessageToString(message), encoding="utf-8")
    return version


def identity_config(name: str = "identity") -> ModelConfig:
    return ModelConfig(
        name=name,
        backend="identity",
        inputs=(Tensor(name="x", dtype="int64"),),
        outputs=(Tensor(name="y", dtype="int64"),),
        max_batch_size=MAX_BATCH_SIZE,
    )


def table_config(name: str = "table", **parameters: str) -> ModelConfig:
    """A model that adds up table[ids] over each list, times `weight`; row i of the table holds 10**i."""
    return ModelConfig(
        name=name,
        backend="tensorflow",
        inputs=(
            Tensor(name="ids__values", dtype="int64", dims=(-1,)),
            Tensor(name="ids__nnzs", dtype="int32"),
            Tensor(name="weight", dtype="float32"),
        ),
        outputs=(Tensor(name="score", dtype="float32"),),
        max_batch_size=MAX_BATCH_SIZE,
        parameters={"TF_GRAPH_TAG": "serve", "TF_SIGNATURE_DEF": "serving_padded", **parameters},
    )


def columns(ids: list[list[int]], weight: float = 1.0) -> dict[str, object]:
    """A request for a table model, with the lists padded to the longest."""
    width = max(map(len, ids))
    return {
        "ids__values": [row + [0] * (width - len(row)) for row in ids],
        "ids__nnzs": np.array([len(row) for row in ids], np.int32),
        "weight": [weight] * len(ids),
    }


def wait_for_more(message: Any) -> None:
    """Edits a table model's config: requests wait up to 100 ms to be joined."""
    message.dynamic_batching.max_queue_delay_microseconds = 100_000
    for entry in message.input:
        entry.allow_ragged_batch = entry.name == "ids__values"


def reasons_of_refusal(repository: Path) -> dict[str, str]:
    """Why each model of a repository cannot be loaded: the server does not start."""
    with pytest.raises(ServerError) as failure:
        EmbeddedServer(ServerConfig(repositories=(repository,))).start()
    return dict(re.findall(r"Model '(\w+)': (.+)", str(failure.value)))
