"""Training goes on when workers die, and takes in new ones: what a worker of an elastic run does.

`rankline.elastic` starts the workers and holds a connection to each, so that it knows at once of one that died. It
forms a world of those that stand ready. A worker keeps what it has learnt in memory every few steps: a commit. When
the world loses a worker, the others leave it and stand ready again; the one with the latest commit becomes worker 0 of
the next world and gives its commit to all. A new worker stands ready beside a world that trains, which ends at its
next commit to take it in. So that nothing is lost if all of them die, worker 0 also leaves its commit as a checkpoint
on disk before a world of several workers forms.

Horovod's own elastic driver is not used: in Horovod 0.28.1 a worker that dies before its world has formed takes all
others with it (`BackgroundThreadLoop` in `operations.cc` lets the exception of Gloo's rendezvous end the process), and
everybody waits while a replacement starts.
"""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from training.checkpoints import Checkpoint, Reader, checkpoint_path, refuse_to_replace
from training.config import SessionConfig, TrainConfig, WorkersConfig
from training.world import World
from workflows.errors import RanklineError, WorkerLostError
from workflows.prepared import PreparedData
from workflows.progress import SILENT, Progress

if TYPE_CHECKING:
    from training.tracking import RunLog, TrackingConfig
    from workflows.trained import TrainedModel

ADDRESS_VARIABLE = "RANKLINE_ELASTIC"
"""In the environment of each worker: HOST:PORT:TOKEN:NUMBER, where to connect and as whom."""

_SILENCE = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 10, socket.TCP_USER_TIMEOUT: 60_000}
"""TCP's options, in s, s and ms: a worker whose host is cut off ends in a minute or so, and frees memory and GPU."""
_STEPS = ("/iteration", "/finite_steps")  # what an optimizer and a fit call their number of steps
T = TypeVar("T")


class RegroupError(RanklineError):
    """A world ends because a new worker waits, or one that is not needed for the next step was lost."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a worker is told when a world forms.

    Attributes:
        environment: variables under which Horovod joins it.
        is_first: whether no world was before it.
        run_id: MLflow run, once there is one.
        events: what happened to workers since the last one.
    """

    environment: Mapping[str, str]
    is_first: bool
    run_id: str | None
    events: Sequence[str]

    @property
    def rank(self) -> int:
        """This worker's number in the world."""
        return int(self.environment["HOROVOD_RANK"])

    @property
    def size(self) -> int:
        """Workers of the world."""
        return int(self.environment["HOROVOD_SIZE"])


def moved(checkpoint: Checkpoint, reader: Reader) -> Checkpoint:
    """A checkpoint for a world of another size, at the same share of the epoch.

    The steps are counted as if that world had taken all of them, so that the decay of the learning rate ends with the
    run. Rows of this epoch may come twice, and others not at all: the workers' shares of it are other ones.

    Args:
        checkpoint: of a world.
        reader: this worker's batches in the other one.
    """
    checkpoint = replace(checkpoint, order=reader.order)
    if len(reader) == checkpoint.num_batches:
        return checkpoint
    at, num_batches = checkpoint.position, len(reader)
    batch = at.batch * num_batches // checkpoint.num_batches
    step = (at.epoch - 1) * num_batches + batch
    state = {
        name: np.full_like(array, step) if name.endswith(_STEPS) else array for name, array in checkpoint.state.items()
    }
    return replace(checkpoint, position=replace(at, step=step, batch=batch), num_batches=num_batches, state=state)


class Membership:
    """A worker's connection to `rankline.elastic`.

    The process ends when the connection does: there is nobody left to train for.

    Args:
        address: what `ADDRESS_VARIABLE` holds.
    """

    def __init__(self, address: str) -> None:
        host, port, token, number = address.rsplit(":", 3)
        self._connection = socket.create_connection((host, int(port)))
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _SILENCE.items():
            self._connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self._heard, self._speaking = threading.Condition(), threading.Lock()
        self._place: Place | None = None
        self._is_over = self._is_lost = self._is_awaited = False
        self._say(hello=token, number=int(number))
        threading.Thread(target=self._listen, daemon=True, name="membership").start()

    @property
    def is_awaited(self) -> bool:
        """Whether a new worker waits for the world to end."""
        return self._is_awaited

    def join(self, step: int) -> Place | None:
        """Stand ready, and wait until a world forms.

        Args:
            step: of the last commit; -1 without one.

        Returns:
            None if the run is over.
        """
        with self._heard:
            self._place = None
            self._say(ready=step)
            self._heard.wait_for(lambda: self._place or self._is_over)
            return None if self._is_over else self._place

    def tell_run(self, run_id: str) -> None:
        """Say which MLflow run it is; worker 0 does."""
        self._say(run_id=run_id)

    def tell_commit(self) -> None:
        """Say that there is a new commit; worker 0 does."""
        self._say(commit=True)

    def tell_trained(self) -> None:
        """Say that the training is over; worker 0 does. From here on it needs no other worker."""
        self._say(trained=True)

    def tell_published(self) -> None:
        """Say that the model is there; worker 0 does."""
        self._say(published=True)

    def wait_until_published(self) -> None:
        """Wait until worker 0 has published the model.

        Raises:
            RegroupError: it was lost before.
        """
        with self._heard:
            self._heard.wait_for(lambda: self._is_lost or self._is_over)
            if not self._is_over:
                raise RegroupError("worker 0 was lost while it published the model.")

    def _say(self, **message: Any) -> None:
        with self._speaking:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _listen(self) -> None:
        try:
            for line in self._connection.makefile("r", encoding="utf-8"):
                message = json.loads(line)
                if "lives" in message:
                    self._say(lives=True)
                with self._heard:
                    if "place" in message:
                        self._place, self._is_lost, self._is_awaited = Place(**message["place"]), False, False
                    self._is_lost |= "lost" in message
                    self._is_awaited |= "awaited" in message
                    self._is_over |= "over" in message
                    self._heard.notify_all()
        except OSError:
            pass
        if not self._is_over:
            os._exit(1)  # the main thread may wait for other workers for ever


class Stay:
    """The time of a worker in one world.

    Args:
        membership: its connection.
        world: it.
        place: what it was told of it.
        commit: what the run goes on from; None from the start.
        every: steps between two commits.
    """

    def __init__(
        self, membership: Membership, world: World, place: Place, commit: Checkpoint | None, every: int
    ) -> None:
        self.run_id = commit.run_id if commit else place.run_id
        """MLflow run; None if there is none yet, or another worker knows."""
        self.commit = commit
        """The last commit of this worker, maybe in a world of another size."""
        self._membership, self._world, self._place, self._every = membership, world, place, every

    def begin(self, log: "RunLog", step: int) -> None:
        """Note in the run what happened since the last world; worker 0 calls this.

        Args:
            log: the run.
            step: that it goes on from.
        """
        self._membership.tell_run(log.run_id)
        size = self._world.size
        log.log_metrics({"workers": size}, step)
        if not self._place.is_first:
            happened = "; ".join(self._place.events) or "a worker joined"
            log.note(f"Step {step:,}: {happened}; {size} worker{'s go' if size > 1 else ' goes'} on.")

    def is_due(self, step: int) -> bool:
        """Whether there is to be a commit after this step."""
        return step % self._every == 0

    def keep(self, commit: Checkpoint) -> None:
        """Commit, and end the world if a new worker waits; all workers of the world call this.

        Args:
            commit: not copied.

        Raises:
            RegroupError: a new worker waits.
            WorkerLostError: another worker was lost.
        """
        self.commit = commit
        if self._world.rank == 0:
            self._membership.tell_commit()
        if sum(self._world.sum([float(self._membership.is_awaited)])):
            raise RegroupError("a new worker waits.")

    def end_training(self) -> None:
        """Before the model is published: worker 0 goes on with that, and the others wait until it is done.

        Raises:
            RegroupError: worker 0 was lost before.
        """
        if self._world.rank == 0:
            self._membership.tell_trained()
        else:
            self._membership.wait_until_published()


def in_worlds(
    membership: Membership, workers: WorkersConfig, place: Path, train: Callable[[World, Stay], T], *, resumes: bool
) -> T:
    """Train in one world after another until the model is published.

    Args:
        membership: of this worker.
        workers: choices about the workers.
        place: where the run has its checkpoint on disk.
        train: trains in a world from `Stay.commit` on, if there is one, and publishes the model as worker 0.
        resumes: whether the first world goes on from what is at `place`.

    Raises:
        ConfigError: another run left its checkpoint at `place`.
        SystemExit: the run has ended well while this worker was in no world.
    """
    from training.horovod_world import HorovodWorld  # takes seconds to import

    class ElasticWorld(HorovodWorld):
        @contextmanager
        def together(self) -> Iterator[None]:
            yield  # `rankline.elastic` ends the others

    commit: Checkpoint | None = None
    while (at := membership.join(commit.position.step if commit else -1)) is not None:
        os.environ.update(at.environment)
        if at.rank == 0 and at.is_first and not resumes:
            refuse_to_replace(place)  # a later world would take it for this run's
        elif at.rank == 0 and commit is None and not at.is_first and place.exists():
            commit = Checkpoint.load(place)
        elif at.rank == 0 and commit is not None and at.size > 1:
            commit.write(place)  # who is lost while Horovod joins takes the others along
        try:
            world = ElasticWorld(compression=workers.compression, timeout_s=workers.timeout_s)
        except WorkerLostError:
            os.abort()  # Horovod joins no other world in this process; the one that replaces it has the checkpoint
        stay = Stay(membership, world, at, commit, workers.commit_every)
        try:
            result = train(world, stay)
            if at.rank == 0:
                membership.tell_published()
            return result
        except (RegroupError, WorkerLostError):
            commit = stay.commit
        finally:
            world.close()
    raise SystemExit(0)


def train_elastic(
    prepared: Path | PreparedData,
    output: Path,
    config: TrainConfig,
    *,
    workers: WorkersConfig,
    session: SessionConfig | None = None,
    tracking: "TrackingConfig",
    progress: Progress = SILENT,
) -> "TrainedModel":
    """What `training.train.train` does, with the same arguments, in a worker that `rankline.elastic` started.

    Raises:
        ConfigError: some number of workers does not divide the global batch.
        SystemExit: the run has ended well while this worker was in no world.
        RanklineError: see `training.train.train`.
    """
    from training.train import train  # takes seconds to import

    for size in range(workers.min_workers, workers.max_workers + 1):
        workers.of_world(config, size)
    if not isinstance(prepared, PreparedData):
        prepared = PreparedData.load(prepared)  # once, not for each world
    once = partial(train, prepared, output, config, session=session, tracking=tracking, progress=progress)
    membership = Membership(os.environ[ADDRESS_VARIABLE])
    return in_worlds(
        membership,
        workers,
        checkpoint_path(output),
        lambda world, stay: once(world=world, workers=workers, stay=stay),
        resumes=session is not None and session.resume,
    )
