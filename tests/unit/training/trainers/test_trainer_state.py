import numpy as np
import pytest

from rankline.training.trainers.state import check_state
from rankline.workflows.core.errors import ArtifactError

STATE = {"model/kernel": np.zeros((2, 3)), "loss/sum": np.float64(1.0)}


def test_a_state_of_the_same_names_and_shapes_passes() -> None:
    check_state(STATE, {"model/kernel": (2, 3), "loss/sum": ()})
    with pytest.raises(ArtifactError):
        check_state(STATE, {"model/kernel": (2, 3)})


def test_the_message_names_what_differs_and_what_to_do() -> None:
    expected = {"model/kernel": (2, 4), **{f"slot/{number}": () for number in range(5)}}
    with pytest.raises(ArtifactError) as caught:
        check_state(STATE, expected)
    message = str(caught.value)
    assert "it lacks slot/0, slot/1, slot/2 and 2 more; " in message
    assert "it has the unknown loss/sum; " in message
    assert "it has model/kernel (2, 3) instead of (2, 4)" in message
    assert "Go on with the configuration that it was saved under, or start anew." in message
