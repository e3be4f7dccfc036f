"""Fitting a PyTorch model: see `training.fit.Fit`."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from training import torch_script
from training.config import TrainConfig
from training.fit import Array, share_of_sample, swapped
from training.loader.chunks import StreamOptions
from training.loader.splits import check_parquet, checks_of
from training.loader.torch import DLDataLoader, TorchAsyncItr
from training.models import model_builder
from training.torch_optimizers import Optimizers, check_optimizer
from workflows.errors import DataError
from workflows.feature_spec import FeatureSpec


class TorchFit:
    """Fits a `torch.nn.Module` that takes the inputs of `TorchAsyncItr` and gives `training.models.torch_mlp.Output`.

    Runs on a GPU if there is one. Seeds PyTorch's global generators.
    """

    PYFUNC = torch_script.__name__
    PACKAGES = ("torch",)

    def __init__(self, spec: FeatureSpec, config: TrainConfig, num_steps: int) -> None:
        torch.manual_seed(config.seed)
        self._spec = spec
        self.model = model_builder(config.model)(spec, config).to(_device())
        self._optimizers = Optimizers(self.model, config, num_steps)
        # With the running statistics of batch normalisation: those of the average are not those of any one step.
        self._tensors = [tensor for tensor in self.model.state_dict().values() if tensor.is_floating_point()]
        self._average = _Average(self._tensors) if config.weight_averaging else None
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=_device())

    @staticmethod
    def check(spec: FeatureSpec, config: TrainConfig) -> None:
        """See `Fit`."""
        check_optimizer(config)
        check_parquet(spec, reader="a PyTorch model")

    @staticmethod
    def batches(
        prepared: Path, spec: FeatureSpec, split: str, batch_size: int, *, shuffle: bool, seed: int
    ) -> DLDataLoader:
        """See `Fit`."""
        options: StreamOptions = {**checks_of(spec), "shuffle": shuffle, "seed": seed}
        dataset = TorchAsyncItr(
            [prepared / name for name in spec.source(split).files],
            cats=[feature.name for feature in spec.categorical],
            conts=[feature.name for feature in spec.continuous],
            labels=[spec.label.name],
            batch_size=batch_size,
            **options,
        )
        if not dataset.num_rows:
            raise DataError(f"the {split} data in {prepared} has no rows. Prepare it from more data.")
        return DLDataLoader(dataset, pin_memory=True, device=_device())

    def step(self, inputs: Mapping[str, Any], labels: Any) -> None:
        """See `Fit`."""
        self.model.train()
        output = self.model(inputs)
        loss = functional.binary_cross_entropy_with_logits(output.logit, labels)
        self._optimizers.step(loss + output.penalty)
        self._loss_sum += loss.detach() * len(labels)

    def loss_sum(self) -> float:
        """See `Fit`."""
        return float(self._loss_sum)

    def average(self) -> None:
        """See `Fit`."""
        if self._average is not None:
            self._average.update()

    def averaged(self) -> AbstractContextManager[None]:
        """See `Fit`."""
        return swapped(self._average)

    def score(self, inputs: Mapping[str, Any]) -> Array:
        """See `Fit`."""
        self.model.eval()
        with torch.inference_mode():
            return self.array(torch.sigmoid(self.model(inputs).logit))

    def array(self, tensor: Any) -> Array:
        """See `Fit`."""
        column: Array = tensor.reshape(-1).cpu().numpy()
        return column

    def weights(self) -> list[Array]:
        """See `Fit`."""
        source = self._average.values if self._average else self._tensors
        return [tensor.cpu().numpy().copy() for tensor in source]

    def set_weights(self, weights: Sequence[Array]) -> None:
        """See `Fit`."""
        for tensor, value in zip(self._tensors, weights, strict=True):
            tensor.copy_(torch.from_numpy(value))

    def export(self, path: Path) -> None:
        """See `Fit`."""
        torch_script.export_torch_script(self.model, self._spec, path)


class _Average:
    """Average of the weights over a run; a sample passes over all of them, tables included."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self.values = [tensor.clone() for tensor in tensors]
        self._count = 0

    def update(self) -> None:
        self._count += 1
        for value, tensor in zip(self.values, self._tensors, strict=True):
            value.lerp_(tensor, share_of_sample(self._count))

    def swap(self) -> None:
        for value, tensor in zip(self.values, self._tensors, strict=True):
            kept = tensor.clone()
            tensor.copy_(value)
            value.copy_(kept)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
