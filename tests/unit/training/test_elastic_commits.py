import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from training.checkpoints import Best, Checkpoint, Position, Reader
from training.config import TrainConfig, WorkersConfig
from training.elastic import Membership, in_worlds, moved
from training.fit_tensorflow import TensorFlowFit
from training.models.mlp import MLPConfig
from training.optimizers import OPTIMIZERS, make_optimizer
from workflows.errors import ConfigError
from workflows.feature_spec import FeatureSpec

ORDER = {"seed": 3, "global_size": 1}
FIRST = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}
STEPS = ("optimizer/0/iteration", "loss/2/finite_steps")


class Batches:
    """So many batches of nothing, with a loader's way to say where it is."""

    num_rows = 0

    def __init__(self, num_batches: int) -> None:
        self._num_batches = num_batches

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        return iter([({}, None)] * self._num_batches)

    def state_dict(self) -> dict[str, Any]:
        return ORDER

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def commit(num_batches: int, epoch: int, batch: int) -> Checkpoint:
    step = (epoch - 1) * num_batches + batch
    return Checkpoint(
        config={},
        fingerprint="f",
        run_id="r",
        position=Position(step=step, epoch=epoch, batch=batch, loss_sum=0.5),
        num_batches=num_batches,
        order={"seed": 3, "global_size": 2},
        best=Best(),
        state={**dict.fromkeys(STEPS, np.array(step)), "model/0/kernel": np.arange(3.0)},
    )


@st.composite
def commits(draw: st.DrawFn) -> Checkpoint:
    num_batches = draw(st.integers(1, 1000))
    return commit(num_batches, draw(st.integers(1, 9)), draw(st.integers(0, num_batches - 1)))


@given(before=commits(), num_batches=st.integers(1, 1000))
def test_a_commit_moves_to_the_same_share_of_the_same_epoch(before: Checkpoint, num_batches: int) -> None:
    after, at = moved(before, Reader(Batches(num_batches))), before.position
    assert after.position.epoch == at.epoch
    assert 0 <= at.batch / before.num_batches - after.position.batch / num_batches < 1 / num_batches
    assert after.position.step == (at.epoch - 1) * num_batches + after.position.batch
    assert (after.num_batches, after.order, after.position.loss_sum) == (num_batches, ORDER, at.loss_sum)


@given(before=commits(), num_batches=st.integers(1, 1000))
def test_the_optimizer_and_the_fit_count_the_steps_of_the_new_world(before: Checkpoint, num_batches: int) -> None:
    after = moved(before, Reader(Batches(num_batches)))
    assert [after.state[name] for name in STEPS] == [after.position.step] * 2
    assert after.state["model/0/kernel"] is before.state["model/0/kernel"]


def test_in_a_world_of_the_same_size_nothing_moves() -> None:
    before = commit(num_batches=10, epoch=2, batch=4)
    assert moved(before, Reader(Batches(10))) == replace(before, order=ORDER)


def test_half_the_workers_have_twice_the_batches() -> None:
    after = moved(commit(num_batches=10, epoch=2, batch=4), Reader(Batches(20)))
    assert after.position == Position(step=28, epoch=2, batch=8, loss_sum=0.5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_that_is_what_optimizers_call_their_steps(name: str) -> None:
    optimizer = make_optimizer(name, learning_rate=0.1, batch_size=4)
    optimizer.build([tf.Variable([[0.0]], name="kernel")])
    names = [variable.name.split("/")[-1] for variable in optimizer.variables]
    assert names.count("iteration:0") == 1


def test_that_is_what_a_fit_calls_its_steps(spec: FeatureSpec) -> None:
    names = TensorFlowFit(spec, TrainConfig(model=MLPConfig(hidden=(4,))), num_steps=1).state()
    assert [name for name in names if name.endswith(("/iteration", "/finite_steps"))] == [*STEPS]


def test_the_checkpoint_of_another_run_is_not_taken_up_or_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("horovod.tensorflow", reason="make horovod", exc_type=ImportError)
    for name, value in FIRST.items():
        monkeypatch.setenv(name, value)  # as the worker does itself, who leaves them for the processes of other tests
    place = tmp_path / "model-checkpoint"
    commit(num_batches=10, epoch=2, batch=4).write(place)
    before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        membership = Membership(f"127.0.0.1:{listener.getsockname()[1]}:token:0")
        driver, _ = listener.accept()
        with driver, membership._connection:
            pool.submit(place_first, driver)
            try:
                with pytest.raises(ConfigError, match="a run that did not end.*Go on with --resume, or delete it"):
                    in_worlds(membership, WorkersConfig(), place, lambda *_: pytest.fail("it trains"), resumes=False)
            finally:
                say(driver, over=True)  # else the end of the connection ends the process
                driver.shutdown(socket.SHUT_RDWR)
    assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file()} == before


def place_first(driver: socket.socket) -> None:
    """Wait until the worker stands ready, and make it worker 0 of the first world."""
    with driver.makefile("r", encoding="utf-8") as lines:
        while "ready" not in json.loads(next(lines)):
            pass
    say(driver, place={"environment": FIRST, "is_first": True, "run_id": None, "events": []})


def say(driver: socket.socket, **message: Any) -> None:
    driver.sendall(json.dumps(message).encode() + b"\n")
