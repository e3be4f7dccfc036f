"""Triton model configurations, written through Triton's protobuf schema."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from rankline.workflows.schema.tensors import Tensor

PYTHON_RUNTIME = "model.py"
"""The only runtime that a config may name: a Python backend."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Configuration of a model that runs in a Triton backend.

    Attributes:
        inputs, outputs: tensors without the batch dimension.
        platform: Triton's name for the model format, if it has one.
        runtime: file of the backend folder that runs the model; "" for Triton's default, which prefers a shared object
            to `model.py`.
        instances: number of parallel copies of the model; in Python, each has its own process.
        batches: whether requests that wait are run together. If not, one that does not wait is passed on sooner.
        max_queue_size: number of requests that may wait; further requests are rejected. 0 for no limit.
        queue_timeout_us: how long a request may wait before it is rejected. 0 for no limit.
    """

    name: str
    backend: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int
    platform: str = ""
    runtime: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    instances: int = 1
    batches: bool = True
    batch_delay_us: int = 0
    max_queue_size: int = 0
    queue_timeout_us: int = 0

    def to_protobuf(self) -> Any:
        config = _skeleton(self)
        config.backend, config.platform, config.runtime = self.backend, self.platform, self.runtime
        if self.batches:
            config.dynamic_batching.SetInParent()
        if self.batch_delay_us:
            config.dynamic_batching.max_queue_delay_microseconds = self.batch_delay_us
        if self.max_queue_size or self.queue_timeout_us:
            policy = config.dynamic_batching.default_queue_policy
            policy.max_queue_size, policy.default_timeout_microseconds = self.max_queue_size, self.queue_timeout_us
        config.instance_group.add(kind=pb.ModelInstanceGroup.KIND_CPU, count=self.instances)
        return config


@dataclass(frozen=True, kw_only=True)
class Step:
    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class EnsembleConfig:
    """Configuration of an ensemble, whose models Triton runs in sequence without a round trip to the client. `version`
    is the version directory to serve.
    """

    name: str
    version: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int
    steps: tuple[Step, ...]
    parameters: Mapping[str, str] = field(default_factory=dict)

    def to_protobuf(self) -> Any:
        config = _skeleton(self)
        config.platform = "ensemble"
        config.version_policy.specific.versions.append(self.version)
        for step in self.steps:
            entry = config.ensemble_scheduling.step.add(model_name=step.model, model_version=-1)
            entry.input_map.update(step.inputs)
            entry.output_map.update(step.outputs)
        return config


def to_pbtxt(config: ModelConfig | EnsembleConfig) -> str:
    return str(text_format.MessageToString(config.to_protobuf()))


def _skeleton(config: ModelConfig | EnsembleConfig) -> Any:
    message = pb.ModelConfig(name=config.name, max_batch_size=config.max_batch_size)
    for key, value in config.parameters.items():
        message.parameters[key].string_value = value
    for entries, tensors in ((message.input, config.inputs), (message.output, config.outputs)):
        for tensor in tensors:
            entry = entries.add(name=tensor.name, data_type=pb.DataType.Value(tensor.data_type), dims=tensor.dims)
            if tensor.optional:
                entry.optional = True
            if -1 in tensor.dims and entries is message.input and isinstance(config, ModelConfig):
                entry.allow_ragged_batch = True  # the backend pads rows of different widths
    return message
