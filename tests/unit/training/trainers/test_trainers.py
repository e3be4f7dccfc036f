import pytest

from rankline.training.models.frameworks import PYTORCH, TENSORFLOW, Framework
from rankline.training.trainers import trainer_for
from rankline.training.trainers.base import share_of_sample, swapped


class Average:
    def __init__(self) -> None:
        self.is_in_use = False

    def swap(self) -> None:
        self.is_in_use = not self.is_in_use


def test_an_average_is_in_use_in_the_block_only_even_when_it_fails() -> None:
    average = Average()
    with pytest.raises(ValueError, match="in the block"), swapped(average):
        assert average.is_in_use
        raise ValueError("in the block")
    assert not average.is_in_use
    with swapped(None):
        pass


def test_the_first_sample_is_the_average_and_later_ones_enter_with_falling_shares() -> None:
    assert [share_of_sample(number) for number in (1, 2, 4)] == [1.0, 0.6, pytest.approx(1 / 3)]


@pytest.mark.parametrize("framework", [PYTORCH, TENSORFLOW], ids=lambda framework: framework.name)
def test_every_framework_has_its_trainer(framework: Framework) -> None:
    trainer = trainer_for(framework)
    assert trainer.__module__.startswith("rankline.training.trainers.")
    assert trainer.PACKAGES
