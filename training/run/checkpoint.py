"""Checkpoints: the complete state of a run, from which an interrupted or diverged run resumes exactly.

A checkpoint is an artifact next to the trained model. Its arrays are plain NumPy files, which execute no code when read
and are memory-mapped, not copied:

    state/NUMBER.npy    arrays of `Trainer.state`; the manifest has their names
    best/NUMBER.npy     weights of the best epoch so far, if the run keeps them
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rankline.training.config.train import TrainConfig
from rankline.training.distributed.communicator import SOLO, Array, World
from rankline.training.trainers.base import Batches
from rankline.workflows.core.errors import ArtifactError, ConfigError
from rankline.workflows.preprocess.prepared_data import KIND as PREPARED
from rankline.workflows.storage.artifacts import load_manifest, publish, refuse_foreign
from rankline.workflows.storage.atomic import remove

KIND = "training-checkpoint"
FREE = ("learning_rate",)
"""Options that may change on resume, so that a diverged run can continue from its last good checkpoint."""


_BEFORE: dict[str, Any] = {"epoch_holdout": "valid"}
"""Option → implicit value before the option existed, if that differs from the option's default."""


def checkpoint_path(output: Path) -> Path:
    return output.with_name(output.name + "-checkpoint")


@dataclass(frozen=True, kw_only=True)
class Position:
    step: int = 0
    epoch: int = 1
    batch: int = 0
    loss_sum: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best epoch so far: its metrics, including `epoch`, and its weights (see `Trainer.weights`).

    The metrics are empty before the first epoch ends, the weights as long as they are not needed.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    weights: Sequence[Array] = ()


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A saved run.

    Attributes:
        config: options of the run, as JSON values.
        fingerprint: of the prepared data.
        run_id: MLflow run.
        num_batches: batches per epoch.
        chosen: `epoch` and metrics that the inner validation rows selected; empty until the final fit.
        position: steps, epochs and batches done.
        order: shuffle state of the loader, see `Reader.order`.
        best: the best epoch so far.
        state: see `Trainer.state`.
    """

    config: Mapping[str, Any]
    fingerprint: str
    run_id: str
    num_batches: int
    chosen: Mapping[str, float] = field(default_factory=dict)
    position: Position = field(default_factory=Position)
    order: Mapping[str, Any] = field(default_factory=dict)
    best: Best = field(default_factory=Best)
    state: Mapping[str, Array] = field(default_factory=dict)

    @property
    def header(self) -> dict[str, Any]:
        """Everything except the arrays, as JSON values."""
        return {
            "config": dict(self.config),
            "run_id": self.run_id,
            "position": asdict(self.position),
            "num_batches": self.num_batches,
            "order": dict(self.order),
            "best": dict(self.best.metrics),
            "state": list(self.state),
            "chosen": dict(self.chosen),
        }

    @classmethod
    def of(
        cls, header: Mapping[str, Any], fingerprint: str, *, state: Sequence[Array], best: Sequence[Array]
    ) -> "Checkpoint":
        """Build a checkpoint from its header and its arrays, which are in the order of the header's names."""
        return cls(
            config=header["config"],
            fingerprint=fingerprint,
            run_id=header["run_id"],
            position=Position(**header["position"]),
            num_batches=header["num_batches"],
            order=header["order"],
            best=Best(metrics=header["best"], weights=best),
            state=dict(zip(header["state"], state, strict=True)),
            chosen=header.get("chosen", {}),
        )

    def write(self, path: Path) -> None:
        """Write the checkpoint to `path` atomically, replacing an earlier one."""
        with publish(path, KIND, made_from={PREPARED: self.fingerprint}, details=self.header) as staging:
            _write_arrays(staging / "state", self.state.values())
            _write_arrays(staging / "best", self.best.weights)

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        if not path.is_dir():
            raise ArtifactError(
                f"{path} does not exist: there is no checkpoint to resume from. Train without --resume."
            )
        try:
            manifest = load_manifest(path, KIND)
            state, best = _read_arrays(path / "state"), _read_arrays(path / "best")
            return cls.of(manifest.details, manifest.made_from[PREPARED], state=state, best=best)
        except (ArtifactError, OSError, KeyError, TypeError, ValueError) as error:
            raise ArtifactError(
                f"the checkpoint cannot be read: {error} Delete {path}, and train without --resume."
            ) from None

    def check(self, config: TrainConfig, fingerprint: str, *, free: Sequence[str] = FREE) -> None:
        """Raise if the data differs from the checkpoint's, or an option that is not in `free`."""
        if fingerprint != self.fingerprint:
            raise ArtifactError(
                f"the checkpoint is of prepared data {self.fingerprint[:12]}, got {fingerprint[:12]}. "
                "Prepare the data as it was, or delete the checkpoint and train without --resume."
            )
        got = plain(config)
        has_other_model = got["model"] != self.config["model"]  # whose options differ
        if not config.early_stopping_patience:  # no epoch is selected
            free = (*free, "epoch_holdout")
        # The checkpoint lacks options that were added later; its run behaved as with these values.
        expected = plain(TrainConfig(model=type(config.model)(), **_BEFORE)) | dict(self.config)
        if odd := [
            f"{name} {got.get(name)!r}, expected {expected.get(name)!r}"
            for name in (["model"] if has_other_model else sorted({*got, *expected} - {*free}))
            if got.get(name) != expected.get(name)
        ]:
            raise ConfigError(
                f"the checkpoint is of another configuration: got {'; '.join(odd)}. "
                "Give the options as they were, or delete the checkpoint and train without --resume."
            )


class Checkpoints:
    """The latest checkpoint of a run, and when to write the next.

    Args:
        every: steps between checkpoints; 0 writes none.
        first: the run before its first step.
        last_step: step of this run's existing checkpoint; None without one.
    """

    def __init__(
        self, path: Path, every: int, first: Checkpoint, *, last_step: int | None, world: World = SOLO
    ) -> None:
        self.path, self.every, self.last_step = path, every, last_step
        self._first, self._world = first, world

    def is_due(self, step: int) -> bool:
        return self.every > 0 and step % self.every == 0

    def write(self, position: Position, order: Mapping[str, Any], best: Best, state: Mapping[str, Array]) -> None:
        """Replace the latest checkpoint. All workers call this; only worker 0 writes."""
        if self._world.rank == 0:
            replace(self._first, position=position, order=order, best=best, state=state).write(self.path)
        self.last_step = position.step

    def remove(self) -> None:
        if self.last_step is not None:
            remove(self.path)


def refuse_to_replace(path: Path) -> None:
    refuse_foreign(path, KIND)
    if path.exists():
        raise ConfigError(
            f"{path} is the checkpoint of an unfinished run, and a new one would replace it. "
            "Go on with --resume, or delete it."
        )


class Reader:
    """The batches of a run, which can start in the middle of an epoch."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._source: Any = getattr(batches, "dataset", batches)  # the dataset of a DLDataLoader has the position
        self._has_position = hasattr(self._source, "load_state_dict")
        self._skipped = 0
        self.order: Mapping[str, Any] = self._source.state_dict() if self._has_position else {}
        """Parameters that determine the order of the rows, as plain values; empty if the loader has no such state."""

    @property
    def num_rows(self) -> int:
        return self._batches.num_rows

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Iterate over the next epoch, or the rest of it after `seek`."""
        skipped, self._skipped = self._skipped, 0
        return islice(self._batches, skipped, None)

    def seek(self, position: Position, order: Mapping[str, Any]) -> None:
        """Start the next epoch at a position, skipping the batches before it.

        A loader that cannot seek reads those batches again.
        """
        if self._has_position:
            self._source.load_state_dict({**order, "epoch": position.epoch - 1, "batch": position.batch})
            self.order = order
            return
        for _ in range(1, position.epoch):
            for _ in self._batches:
                pass
        self._skipped = position.batch


def plain(config: TrainConfig) -> dict[str, Any]:
    """Return the options as JSON values, with lists instead of tuples."""
    choices: dict[str, Any] = json.loads(json.dumps(config.to_dict()))
    return choices


def all_finite(arrays: Iterable[Array]) -> bool:
    """Whether all values are finite, without copying the arrays."""
    numbers = (array for array in arrays if array.size and np.issubdtype(array.dtype, np.floating))
    return all(np.isfinite(array.min()) and np.isfinite(array.max()) for array in numbers)  # both propagate NaN


def _write_arrays(directory: Path, arrays: Iterable[Array]) -> None:
    directory.mkdir()
    for number, array in enumerate(arrays):
        np.save(directory / f"{number:06}.npy", array, allow_pickle=False)


def _read_arrays(directory: Path) -> list[Array]:
    """Memory-map the arrays copy-on-write: PyTorch needs writable arrays, and the files must not change."""
    files = sorted(directory.glob("*.npy"))
    return [np.asarray(np.load(path, mmap_mode="c", allow_pickle=False)) for path in files]
