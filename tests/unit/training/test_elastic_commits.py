from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from training.checkpoints import Best, Checkpoint, Position, Reader
from training.elastic import moved
from training.optimizers import OPTIMIZERS, make_optimizer

ORDER = {"seed": 3, "global_size": 1}


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
        state={"optimizer/0/iteration": np.array(step), "model/0/kernel": np.arange(3.0)},
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
def test_the_optimizer_counts_the_steps_of_the_new_world(before: Checkpoint, num_batches: int) -> None:
    after = moved(before, Reader(Batches(num_batches)))
    assert after.state["optimizer/0/iteration"] == after.position.step
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
