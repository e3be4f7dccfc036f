"""Data loading as in NVIDIA's SIM: several passes per epoch, and rows cached in memory after the first pass."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankline.compat.sim.options import SimOptions
from rankline.training.data.loader.memory import available_bytes
from rankline.training.data.open_split import tensorflow_loader
from rankline.training.trainers.base import Batches
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.feature_spec import FeatureSpec

Batch = tuple[Mapping[str, Any], Any]

_KEPT_SHARE = 0.25  # of the available memory


class SplitOpener:
    """A replacement for `Trainer.batches` that opens a split as configured in `SimOptions`."""

    def __init__(self, config: SimOptions) -> None:
        self._config = config

    def __call__(
        self,
        prepared: Path,
        spec: FeatureSpec,
        split: str,
        batch_size: int = 0,  # noqa: ARG002  (replaced by the global batch size)
        *,
        shuffle: bool,
        seed: int,
    ) -> Batches:
        config = self._config
        loader = tensorflow_loader(
            prepared,
            spec,
            split,
            config.global_batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=config.benchmark or (shuffle and config.drop_remainder),
            prefetch=config.prefetch_train_size if shuffle else config.prefetch_test_size,
            num_threads=config.num_parallel_calls,
        )
        if shuffle:
            return repeated(loader, max(1, config.repeat_count))
        return loader if config.disable_cache else CachedBatches(loader)


def with_rows(spec: FeatureSpec, split: str, num_rows: int) -> FeatureSpec:
    """Return a copy of `spec` that repeats the files of a split until the split has at least `num_rows` rows."""
    source = spec.source(split)
    times = max(1, math.ceil(num_rows / max(1, source.num_rows)))
    more = replace(source, files=source.files * times, num_rows=source.num_rows * times)
    return replace(spec, sources={**spec.sources, split: more})


def repeated(batches: Batches, times: int) -> Batches:
    """Return a loader in which one epoch consists of `times` consecutive epochs of `batches`."""
    if times == 1:
        return batches
    return _PositionedPasses(batches, times) if hasattr(batches, "load_state_dict") else _Passes(batches, times)


class _Passes:
    def __init__(self, batches: Batches, times: int) -> None:
        self._batches: Any = batches
        self._times = times
        self._done = 0  # passes to skip in the next epoch
        self.num_rows = times * batches.num_rows

    def __len__(self) -> int:
        return self._times * len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        done, self._done = self._done, 0
        for _ in range(done, self._times):
            yield from self._batches


class _PositionedPasses(_Passes):
    def state_dict(self) -> dict[str, Any]:
        inner = self._batches.state_dict()
        epoch, done = divmod(inner["epoch"], self._times)
        return {**inner, "epoch": epoch, "batch": done * len(self._batches) + inner["batch"], "times": self._times}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("times") != self._times:
            raise ConfigError(
                f"the checkpoint was saved with {state.get('times', 1)} passes per epoch, but this run has "
                f"{self._times}. Use the same --repeat_count as before, or start a new run."
            )
        done, batch = divmod(state["batch"], len(self._batches))
        self._batches.load_state_dict({**state, "epoch": state["epoch"] * self._times + done, "batch": batch})
        self._done = done


class CachedBatches:
    """TensorFlow batches that are identical in each pass, cached after the first pass if they fit into `max_bytes`.

    By default, `max_bytes` is a quarter of the memory available at the first pass.
    """

    def __init__(self, batches: Batches, max_bytes: int | None = None) -> None:
        self._batches, self._max_bytes = batches, max_bytes
        self._kept: list[Batch] | None = None
        self.num_rows = batches.num_rows

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return self._first_pass() if self._kept is None else iter(self._kept)

    def _first_pass(self) -> Iterator[Batch]:
        left = int(_KEPT_SHARE * available_bytes()) if self._max_bytes is None else self._max_bytes
        kept: list[Batch] = []
        for batch in self._batches:
            left -= sum(math.prod(tensor.shape) * tensor.dtype.size for tensor in (*batch[0].values(), batch[1]))
            if left >= 0:
                kept.append(batch)
            else:
                kept.clear()
            yield batch
        if left >= 0:
            self._kept = kept
