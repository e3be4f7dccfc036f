"""Trainer of PyTorch models."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rankline.training.config.train import TrainConfig
from rankline.training.data.loader.files import ParquetFiles
from rankline.training.data.loader.stream import StreamOptions
from rankline.training.data.loader.torch import DLDataLoader, TorchAsyncItr
from rankline.training.data.open_split import check_parquet, parquet_split
from rankline.training.export import torchscript as torch_script
from rankline.training.models.tabular.torch_mlp import loss_of, outputs_of
from rankline.training.trainers.base import Array, Trainer, check_state, share_of_sample
from rankline.training.trainers.lr_schedule import check_optimizer
from rankline.training.trainers.torch_optimizers import OPTIMIZERS, Optimizers
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.feature_spec import FeatureSpec

if TYPE_CHECKING:
    from typing_extensions import Unpack

_OPTIMIZER = "optimizer/"


class TorchTrainer(Trainer):
    """Trains a `torch.nn.Module` that maps the inputs of `TorchAsyncItr` to `torch_mlp.Output`.

    Uses a GPU if there is one. Seeds PyTorch's global generators; dropout then continues in a separate random stream
    unaffected by other code. A mixed `precision` applies to training only; scoring and export use float32.
    """

    PYFUNC = torch_script.__name__
    PACKAGES = ("torch",)

    def __init__(self, spec: FeatureSpec, config: TrainConfig, num_steps: int, **_: Any) -> None:
        torch.manual_seed(config.seed)
        self._spec = spec
        self.model = config.model.build(spec, config).to(_device())
        self._optimizers = Optimizers(self.model, config, num_steps)
        # Includes the running statistics of batch normalization, which are averaged along with the weights.
        self._tensors = [tensor for tensor in self.model.state_dict().values() if tensor.is_floating_point()]
        self._average = _Average(self._tensors) if config.weight_averaging else None
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=_device())
        self._added_sum = torch.zeros((), dtype=torch.float64, device=_device())
        self._finite_steps = torch.zeros((), dtype=torch.int64, device=_device())
        self._autocast = torch.autocast(
            _device().type, getattr(torch, config.precision), enabled=config.precision != "float32"
        )
        self._random = _random_states()

    @staticmethod
    def check(spec: FeatureSpec, config: TrainConfig, *, num_workers: int = 1) -> None:
        name = config.model.name
        if num_workers > 1:
            raise ConfigError(
                f"PyTorch models such as {name} support only one worker, got {num_workers}. Use one "
                "worker or a TensorFlow model."
            )
        if config.xla:
            raise ConfigError(f"xla is TensorFlow's compiler, but {name} is a PyTorch model. Omit xla.")
        check_optimizer(config.optimizer, config.table_lr_scale, OPTIMIZERS)
        check_parquet(spec, reader="a PyTorch model")

    @staticmethod
    def sees_gpu() -> bool:
        return torch.cuda.is_available()

    @staticmethod
    def deterministic() -> AbstractContextManager[None]:
        raise ConfigError("deterministic kernels are available only for TensorFlow models. Omit deterministic.")

    @staticmethod
    def batches(
        prepared: Path, spec: FeatureSpec, split: str, batch_size: int, **options: "Unpack[StreamOptions]"
    ) -> DLDataLoader:
        def make(files: ParquetFiles, options: StreamOptions) -> TorchAsyncItr:
            return TorchAsyncItr(
                files,
                cats=[feature.name for feature in spec.categorical],
                conts=[feature.name for feature in spec.continuous],
                labels=[label.name for label in spec.labels],
                stack_labels=True,
                batch_size=batch_size,
                **options,
            )

        dataset = parquet_split(make, prepared, spec, split, options)
        return DLDataLoader(dataset, pin_memory=True, device=_device())

    def step(self, inputs: Mapping[str, Any], labels: Any) -> None:
        self.model.train()
        with self._own_random(), self._autocast:
            output = self.model(inputs)
        loss = loss_of(self._spec.heads, labels, output.logit.float())
        self._optimizers.step(loss + output.penalty.float())
        self._loss_sum += loss.detach() * len(labels)
        self._added_sum += output.penalty.detach() * len(labels)
        # Once the sum is not finite it stays so, and the counter stops.
        self._finite_steps += torch.isfinite(self._loss_sum)

    def diverged_at(self) -> int | None:
        return None if torch.isfinite(self._loss_sum) else int(self._finite_steps) + 1

    def num_parameters(self) -> tuple[int, int]:
        tables, others = (
            sum(weight.numel() for weight in weights if weight.requires_grad)
            for weights in (self._optimizers.tables, self._optimizers.rest)
        )
        return tables, others

    def score(self, inputs: Mapping[str, Any]) -> Array:
        self.model.eval()
        with torch.inference_mode():
            return self.array(torch.cat(outputs_of(self._spec.heads, self.model(inputs).logit), dim=1))

    def array(self, tensor: Any) -> Array:
        array: Array = tensor.cpu().numpy()
        return array[:, 0] if array.ndim > 1 and array.shape[1] == 1 else array

    def weights(self) -> list[Array]:
        source = self._average.values if self._average else self._tensors
        return [tensor.cpu().numpy().copy() for tensor in source]

    def set_weights(self, weights: Sequence[Array]) -> None:
        for tensor, value in zip(self._tensors, weights, strict=True):
            tensor.copy_(torch.from_numpy(value))

    def state(self) -> dict[str, Array]:
        return {name: torch.as_tensor(value).numpy(force=True).copy() for name, value in self._parts().items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        check_state(state, {name: tuple(np.shape(value)) for name, value in self._parts().items()})
        for name, tensor in self._tensor_parts().items():
            tensor.copy_(torch.as_tensor(state[name]))
        self._optimizers.restore(
            {name.removeprefix(_OPTIMIZER): value for name, value in state.items() if name.startswith(_OPTIMIZER)}
        )

    def export(self, path: Path) -> None:
        torch_script.export_torch_script(self.model, self._spec, path)

    def _parts(self) -> dict[str, Any]:
        optimizer = {_OPTIMIZER + name: value for name, value in self._optimizers.state().items()}
        return self._tensor_parts() | optimizer

    def _tensor_parts(self) -> dict[str, torch.Tensor]:
        parts = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        if self._average is not None:
            parts |= {f"average/{number}": tensor for number, tensor in enumerate(self._average.values)}
            parts["average/count"] = self._average.count
        parts |= {f"random/{number}": state for number, state in enumerate(self._random)}
        sums = {"loss/sum": self._loss_sum, "loss/added": self._added_sum}
        return parts | sums | {"loss/finite_steps": self._finite_steps}

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        """Switch to the trainer's own random state within the block."""
        outside = _random_states()
        _set_random_states(self._random)
        try:
            yield
        finally:
            self._random = _random_states()
            _set_random_states(outside)


class _Average:
    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self.values = [tensor.clone() for tensor in tensors]
        self.count = torch.zeros((), dtype=torch.int64)

    def update(self) -> None:
        self.count += 1
        for value, tensor in zip(self.values, self._tensors, strict=True):
            value.lerp_(tensor, share_of_sample(int(self.count)))

    def swap(self) -> None:
        for value, tensor in zip(self.values, self._tensors, strict=True):
            kept = tensor.clone()
            tensor.copy_(value)
            value.copy_(kept)


def _device() -> torch.device:
    return torch.device("cuda" if TorchTrainer.sees_gpu() else "cpu")


def _random_states() -> list[torch.Tensor]:
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


def _set_random_states(states: Sequence[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    torch.cuda.set_rng_state_all(states[1:])
