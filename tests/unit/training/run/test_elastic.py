from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.config.train import TrainConfig
from rankline.training.models.tabular import MLPConfig
from rankline.training.run.checkpoint import Best, Checkpoint, Generation, Position, Reader, resized
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.schema.feature_spec import FeatureSpec

ORDER = {"seed": 3, "global_size": 1}
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


def checkpoint(num_batches: int, epoch: int, batch: int) -> Checkpoint:
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
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    num_batches = draw(st.integers(1, 1000))
    return checkpoint(num_batches, draw(st.integers(1, 9)), draw(st.integers(0, num_batches - 1)))


@given(before=checkpoints(), num_batches=st.integers(1, 1000))
def test_checkpoint_is_resized_to_the_same_share_of_the_same_epoch(before: Checkpoint, num_batches: int) -> None:
    after, at = resized(before, Reader(Batches(num_batches))), before.position
    assert after.position.epoch == at.epoch
    assert 0 <= at.batch / before.num_batches - after.position.batch / num_batches < 1 / num_batches
    assert after.position.step == (at.epoch - 1) * num_batches + after.position.batch
    assert (after.num_batches, after.order, after.position.loss_sum) == (num_batches, ORDER, at.loss_sum)


@given(before=checkpoints(), num_batches=st.integers(1, 1000))
def test_optimizer_and_the_fit_count_the_steps_of_the_new_workers(before: Checkpoint, num_batches: int) -> None:
    after = resized(before, Reader(Batches(num_batches)))
    assert [after.state[name] for name in STEPS] == [after.position.step] * 2
    assert after.state["model/0/kernel"] is before.state["model/0/kernel"]


def test_resizing_to_the_same_number_of_workers_changes_nothing() -> None:
    before = checkpoint(num_batches=10, epoch=2, batch=4)
    assert resized(before, Reader(Batches(10))) == replace(before, order=ORDER)


def test_step_counters_have_the_names_that_resizing_knows(spec: FeatureSpec) -> None:
    names = TensorFlowTrainer(spec, TrainConfig(model=MLPConfig(hidden=(4,))), num_steps=1).state()
    assert [name for name in names if name.endswith(("/iteration", "/finite_steps"))] == [*STEPS]


@given(number=st.integers(0, 99), run_id=st.none() | st.text(), has_checkpoint=st.booleans(), cause=st.text())
def test_worker_finds_its_generation_in_the_environment(
    number: int, run_id: str | None, has_checkpoint: bool, cause: str
) -> None:
    generation = Generation(number=number, run_id=run_id, has_checkpoint=has_checkpoint, cause=cause)
    assert Generation.from_environment(generation.to_environment()) == generation
