import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.config.train import DECAYS, TrainConfig
from rankline.training.trainers.lr_schedule import Schedule

STEPS = st.integers(0, 5_000)
SCHEDULES = st.builds(
    Schedule,
    num_steps=st.integers(1, 5_000),
    decay=st.sampled_from(DECAYS),
    warmup_steps=STEPS,
    decay_start_step=STEPS,
)


def start(schedule: Schedule) -> int:
    return max(schedule.warmup_steps, schedule.decay_start_step)


@given(SCHEDULES, st.floats(0, 10_000))
def test_the_factor_stays_between_zero_and_one(schedule: Schedule, step: float) -> None:
    assert 0 <= schedule.factor(step) <= 1


@given(SCHEDULES, st.floats(0, 5_000), st.floats(0, 1))
def test_it_never_jumps(schedule: Schedule, step: float, further: float) -> None:
    steepest = 1 / max(schedule.warmup_steps, 1) + 2 / max(schedule.num_steps - start(schedule), 1)
    assert abs(schedule.factor(step + further) - schedule.factor(step)) <= steepest * further + 1e-12


@given(SCHEDULES, STEPS)
def test_it_rises_from_zero_through_the_warmup_and_never_after(schedule: Schedule, step: int) -> None:
    rises = schedule.factor(step + 1) > schedule.factor(step)
    assert rises == (step < schedule.warmup_steps)
    assert schedule.factor(0) == (0 if schedule.warmup_steps else 1)


@given(SCHEDULES)
def test_it_reaches_one_and_then_zero_at_the_end_of_the_run(schedule: Schedule) -> None:
    assert schedule.factor(start(schedule)) == 1
    if start(schedule) < schedule.num_steps:
        assert schedule.factor(schedule.num_steps) == pytest.approx(1 if schedule.decay == "none" else 0)
        assert schedule.factor(schedule.num_steps - 1) > 0


@given(st.integers(1, 100), st.integers(0, 100), st.integers(101, 300), st.integers(0, 300))
def test_quadratic_is_the_published_polynomial_decay(warmup: int, plateau: int, num_steps: int, step: int) -> None:
    decay_start = min(warmup + plateau, num_steps - 1)
    schedule = Schedule(num_steps=num_steps, decay="quadratic", warmup_steps=warmup, decay_start_step=decay_start)
    if step < warmup:
        expected = step / warmup
    elif step < decay_start:
        expected = 1.0
    else:
        expected = (max(num_steps - step, 0) / (num_steps - decay_start)) ** 2
    assert schedule.factor(step) == pytest.approx(expected)


def test_it_is_made_from_the_choices_of_a_run() -> None:
    config = TrainConfig(learning_rate_decay="quadratic", warmup_steps=3, decay_start_step=7)
    assert Schedule.of(config, 20) == Schedule(num_steps=20, decay="quadratic", warmup_steps=3, decay_start_step=7)
    assert Schedule.of(TrainConfig(), 20).is_constant
    assert not Schedule.of(TrainConfig(warmup_steps=1), 20).is_constant
    assert not Schedule.of(config, 20).is_constant
