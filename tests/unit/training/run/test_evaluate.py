from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from rankline.training.evaluation import quality
from rankline.training.evaluation.scored_rows import FirstRows, Tally
from rankline.training.run.loop import evaluate
from rankline.workflows.core.errors import DataError
from rankline.workflows.schema.targets import MULTICLASS, Head
from tests.factories.workers import FakeTwoWorkers


class Scores:
    """Stands for a model: its scores are an input, and half as large without the averaged weights."""

    def __init__(self) -> None:
        self._factor = 0.5

    @contextmanager
    def averaged(self) -> Iterator[None]:
        self._factor = 1.0
        yield
        self._factor = 0.5

    def score(self, inputs: dict[str, Any]) -> Any:
        return np.asarray(inputs["score"], np.float32) * self._factor

    def array(self, tensor: Any) -> Any:
        return np.asarray(tensor)


LABELS, CHANCES, USERS = [0, 1, 1, 0, 1], [0.1, 0.7, 0.4, 0.6, 0.9], [1, 1, 2, 2, 2]
BATCHES = [({"score": CHANCES[part], "user": USERS[part]}, LABELS[part]) for part in (slice(0, 2), slice(2, 5))]
CLICK = [Head("click")]


def without_groups() -> tuple[Any, Any]:
    return np.array(LABELS), np.array(CHANCES, np.float32)


def evaluated(batches: Any = BATCHES, heads: Any = CLICK, **options: Any) -> dict[str, float]:
    trainer: Any = Scores()
    figures = evaluate(trainer, batches, heads, **{"group_by": "user", "split": "validation", **options})
    assert trainer.score({"score": [1.0]}) == 0.5  # what is trained on is as it was
    return figures


EXPECTED = quality(*without_groups(), np.array(USERS))


def test_evaluation_uses_averaged_weights_and_keeps_the_first_rows() -> None:
    first = FirstRows()
    assert evaluated(first_rows=first) == EXPECTED
    assert EXPECTED["gauc"] != EXPECTED["auc"]
    assert evaluated(group_by="nobody") == evaluated(group_by=None) == quality(*without_groups())
    labels, scores = first.gathered()
    assert (labels.tolist(), scores.tolist()) == (LABELS, np.array(CHANCES, np.float32).tolist())


def test_workers_measure_the_scores_of_all_and_take_the_figures_of_the_first() -> None:
    other = evaluated_keys(BATCHES[1:])
    assert evaluated(BATCHES[:1], world=FakeTwoWorkers(other)) == EXPECTED
    of_the_first = {"auc": 0.125}
    assert (
        evaluated(BATCHES[1:], world=FakeTwoWorkers(evaluated_keys(BATCHES[:1]), rank=1, said=of_the_first))
        == of_the_first
    )


def evaluated_keys(batches: Any) -> list[Any]:
    """What a worker with these batches sends: each distinct row as a number, and how often it came."""
    tally = Tally(CLICK)
    for inputs, labels in batches:
        tally.add(np.array(labels), np.array(inputs["score"], np.float32), np.array(inputs["user"]))
    sent: list[Any] = []

    class Sending(FakeTwoWorkers):
        def all_gather(self, array: Any) -> Any:
            sent.append(array)
            return array

    tally.rows(Sending([]))
    return sent


KINDS = Head("kind", task=MULTICLASS, classes=("a", "b", "c"))


@pytest.mark.parametrize(
    ("labels", "heads", "message"),
    [
        ([0, 0.5], CLICK, "other than 0 and 1.*for every label: 0 and 1"),
        ([0, 3], [KINDS], "indices of the 3 classes.*for every label: 0 to 2"),
        ([[1, 5], [0, 1]], [*CLICK, KINDS], "indices of the 3 classes.*for every label: 0 and 1 and 0 to 2"),
    ],
)
def test_evaluate_names_labels_that_can_be_measured(labels: Any, heads: Any, message: str) -> None:
    widths = sum(head.width for head in heads)
    scores = np.full((2, widths) if widths > 1 else 2, 0.5)
    with pytest.raises(DataError, match=f"the test data cannot be evaluated: .*{message}"):
        evaluated([({"score": scores}, labels)], heads, split="test", group_by=None)
