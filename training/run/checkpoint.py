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

from rankline.training.config.train import SessionConfig, TrainConfig
from rankline.training.distributed.communicator import SOLO, Array, Communicator
from rankline.training.distributed.config import WorkersConfig
from rankline.training.tracking import rankline_version
from rankline.training.trainers.base import Batches
from rankline.workflows.core.errors import ArtifactError, ConfigError
from rankline.workflows.core.formatting import listed
from rankline.workflows.preprocess.prepared_data import KIND as PREPARED
from rankline.workflows.storage.artifacts import code_fingerprint, load_manifest, publish, refuse_foreign, versions
from rankline.workflows.storage.atomic import remove

KIND = "training-checkpoint"
CHANGEABLE_ON_RESUME = ("learning_rate",)
"""Options that may change on resume, so that a diverged run can continue from its last good checkpoint."""


_BEFORE: dict[str, Any] = {"epoch_holdout": "valid"}
"""Option → implicit value before the option existed, if that differs from the option's default."""
_AS_THEY_ARE = ("config", "run_id", "num_batches", "order", "chosen")
"""Fields of a checkpoint that the manifest holds without conversion."""


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
    """A checkpoint of a run, from which it can be resumed.

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
        parts = {"position": asdict(self.position), "best": dict(self.best.metrics), "state": list(self.state)}
        return parts | {name: getattr(self, name) for name in _AS_THEY_ARE}

    @classmethod
    def of(
        cls, header: Mapping[str, Any], fingerprint: str, *, state: Sequence[Array], best: Sequence[Array]
    ) -> "Checkpoint":
        """Build a checkpoint from its header and arrays. The `state` arrays must be in the header's order."""
        header = {"chosen": {}, **header}  # earlier versions lack it
        return cls(
            fingerprint=fingerprint,
            position=Position(**header["position"]),
            best=Best(metrics=header["best"], weights=best),
            state=dict(zip(header["state"], state, strict=True)),
            **{name: header[name] for name in _AS_THEY_ARE},
        )

    def write(self, path: Path) -> None:
        with publish(path, KIND, made_from={PREPARED: self.fingerprint}, details=self.header) as staging:
            _write_arrays(staging / "state", self.state.values())
            _write_arrays(staging / "best", self.best.weights)

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        if not path.is_dir():
            raise ArtifactError(
                f"{path} does not exist, so there is no checkpoint to resume from. Train without --resume."
            )
        try:
            manifest = load_manifest(path, KIND)
            state, best = _read_arrays(path / "state"), _read_arrays(path / "best")
            return cls.of(manifest.details, manifest.made_from[PREPARED], state=state, best=best)
        except (ArtifactError, OSError, KeyError, TypeError, ValueError) as error:
            raise ArtifactError(
                f"the checkpoint cannot be read: {error} Delete {path}, and train without --resume."
            ) from None

    def check(self, config: TrainConfig, fingerprint: str, *, free: Sequence[str] = CHANGEABLE_ON_RESUME) -> None:
        """Raise an error if the data or any option that is not in `free` differs from the checkpoint's."""
        if fingerprint != self.fingerprint:
            raise ArtifactError(
                f"the checkpoint was made from prepared data with fingerprint {self.fingerprint[:12]}, not "
                f"{fingerprint[:12]}. Restore the original data, or delete the checkpoint and train without --resume."
            )
        got = plain(config)
        has_other_model = got["model"] != self.config["model"]  # whose options differ
        if not config.patience:  # no epoch is selected
            free = (*free, "epoch_holdout")
        # The checkpoint lacks options that were added later; its run behaved as with these values.
        expected = plain(TrainConfig(model=type(config.model)(), **_BEFORE)) | dict(self.config)
        if odd := [
            f"{name} {got.get(name)!r}, expected {expected.get(name)!r}"
            for name in (["model"] if has_other_model else sorted({*got, *expected} - {*free}))
            if got.get(name) != expected.get(name)
        ]:
            raise ConfigError(
                f"the checkpoint was written with other options: got {'; '.join(odd)}. Pass the same options as "
                "before, or delete the checkpoint and train without --resume."
            )


class Checkpoints:
    """Writes and removes the checkpoint of a run, and determines when the next one is due."""

    def __init__(
        self, path: Path, every: int, first: Checkpoint, *, last_step: int | None, world: Communicator = SOLO
    ) -> None:
        self.path, self.every, self.last_step = path, every, last_step
        self._first, self._world = first, world

    def is_due(self, step: int) -> bool:
        return self.every > 0 and step % self.every == 0

    def write(self, position: Position, order: Mapping[str, Any], best: Best, state: Mapping[str, Array]) -> None:
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
            f"{path} is the checkpoint of an unfinished run, which a new run would replace. Continue with "
            "--resume, or delete the checkpoint."
        )


class Reader:
    """An iterable over a run's batches that can start in the middle of an epoch."""

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
    """Return the options as built-in types, as after a JSON round trip: tuples become lists."""
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


_CODE = ("workflows", "training")  # the packages whose code affects a run
_SHOWN = 3


def check_same(
    world: Communicator, config: TrainConfig, session: SessionConfig, workers: WorkersConfig, fingerprint: str
) -> None:
    if world.size == 1:
        return
    mine = {
        "prepared data": fingerprint[:12],
        "rankline": rankline_version(),
        "code": code_fingerprint(*(Path(__file__).parents[2] / name for name in _CODE)),
        **{name: str(found) for name, found in versions().items() if name in ("tensorflow-cpu", "tensorflow", "numpy")},
        **{
            name: repr(value)
            for choices in (config.to_dict(), asdict(session), asdict(workers))
            for name, value in choices.items()
        },
    }
    expected, *others = world.all_gather_object(mine)
    for rank, got in enumerate(others, start=1):
        if odd := [
            f"{name} {got.get(name)}, but worker 0 has {expected.get(name)}"
            for name in sorted({*got, *expected})
            if got.get(name) != expected.get(name)
        ]:
            raise ConfigError(
                f"worker {rank} has {listed(odd, _SHOWN, '; ')}. Start all workers with the same options, data, "
                "code and packages."
            )


def shared_checkpoint(world: Communicator, checkpoint: Checkpoint | None) -> Checkpoint | None:
    """Return worker 0's checkpoint on all workers, or None if worker 0 has none.

    Only worker 0 has the arrays; `rankline.training.trainers.base.Trainer.share_state` sends the state to the others.
    """
    if world.size == 1:
        return checkpoint
    mine = checkpoint and (checkpoint.header | {"state": []}, checkpoint.fingerprint)
    shared: tuple[dict[str, Any], str] | None = world.all_gather_object(mine)[0]
    if shared is None or world.rank == 0:
        return checkpoint
    header, fingerprint = shared
    if "global_rank" in header["order"]:  # absent if the loader cannot restore an order
        header["order"]["global_rank"] = world.rank
    return Checkpoint.of(header, fingerprint, state=(), best=())


GENERATION_VARIABLE = "RANKLINE_GENERATION"
"""Environment variable with the `Generation` as JSON, set for each worker of an elastic run."""

_STEP_COUNTERS = ("/iteration", "/finite_steps")  # name suffixes of the optimizer's and the trainer's step counters


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One launch of an elastic run, with a fixed set of workers.

    Attributes:
        number: number of earlier launches.
        run_id: MLflow run that an earlier generation opened.
        has_checkpoint: whether an earlier generation wrote a checkpoint.
        cause: why the last generation ended, as a sentence.
    """

    number: int = 0
    run_id: str | None = None
    has_checkpoint: bool = False
    cause: str = ""

    def to_environment(self) -> dict[str, str]:
        return {GENERATION_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Generation | None":
        text = environment.get(GENERATION_VARIABLE)
        return cls(**json.loads(text)) if text else None


def resized(checkpoint: Checkpoint, reader: Reader) -> Checkpoint:
    """Adapt a checkpoint to a different number of workers, keeping its relative position in the epoch.

    Steps are converted as if these workers had run from the start, so that the learning rate decays to the end of the
    run. Some rows of this epoch may be read twice and others never, because the split depends on the number of workers.
    """
    checkpoint = replace(checkpoint, order=reader.order)
    if len(reader) == checkpoint.num_batches:
        return checkpoint
    at, num_batches = checkpoint.position, len(reader)
    batch = at.batch * num_batches // checkpoint.num_batches
    step = (at.epoch - 1) * num_batches + batch
    state = {
        name: np.full_like(array, step) if name.endswith(_STEP_COUNTERS) else array
        for name, array in checkpoint.state.items()
    }
    return replace(checkpoint, position=replace(at, step=step, batch=batch), num_batches=num_batches, state=state)
