from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from rankline.training.models.auto.learner import Deadline, Fitted, Learner, LearnerError
from rankline.training.models.auto.linear import Linear
from rankline.training.models.auto.rows import Floats, Fold, Rows
from rankline.training.models.auto.selection import chosen
from rankline.training.models.auto.trees import CatBoost
from tests.factories.training.tables import table_rows

ROWS = table_rows("regression", 400)
NOISE = np.random.default_rng(3).normal(0, 5, (3, 400, 1))
LATER = Deadline.after(1e6)


class Known(Learner):
    """A learner whose held-out scores are given."""

    def __init__(self, name: str, scores: Floats | BaseException, *packages: str) -> None:
        self.name, self.packages, self._scores = name, packages, scores  # type: ignore[misc]

    name: ClassVar[str]

    def held_out_scores(self, rows: Rows, folds: Sequence[Fold], deadline: Deadline) -> Floats:
        if isinstance(self._scores, BaseException):
            raise self._scores
        made = np.full((len(rows), 1), np.nan)
        for _, held in folds:
            made[held] = self._scores[held]
        return made

    def fit(self, rows: Rows) -> Fitted:
        raise NotImplementedError


def noisy(*numbers: int, scale: float = 1.0) -> Any:
    return ROWS.labels[:, None] + scale * sum(NOISE[number] for number in numbers)


def test_best_learner_is_chosen_if_others_add_nothing() -> None:
    choice = chosen([Known("poor", noisy(0, 1)), Known("good", noisy(0))], ROWS, LATER)
    assert choice.weights == {"good": 1.0}
    assert choice.reason.startswith("the lowest error, 2")
    errors = {candidate.name: candidate.error for candidate in choice.candidates}
    assert errors["good"] == pytest.approx(5, rel=0.1)
    assert errors["poor"] == pytest.approx(5 * 2**0.5, rel=0.1)


def test_independent_errors_are_blended_by_their_size() -> None:
    learners = [Known("a", noisy(0)), Known("b", noisy(1)), Known("c", noisy(2, scale=4.0))]
    choice = chosen(learners, ROWS, LATER)
    assert choice.weights["a"] == pytest.approx(0.5, abs=0.1)
    assert choice.weights["b"] == pytest.approx(0.5, abs=0.1)
    assert choice.weights.get("c", 0) < 0.1
    assert sum(choice.weights.values()) == pytest.approx(1)
    assert choice.reason.startswith("blending lowers the error of ")


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (Known("b", noisy(0), "no_such_module"), "no_such_module is not installed"),
        (Known("b", LearnerError("it needs 9 s more, which the time limit does not allow.")), "9 s more"),
        (Known("b", KeyboardInterrupt()), "the comparison was stopped"),
    ],
)
def test_learner_that_cannot_be_compared_is_left_out_with_the_reason(other: Learner, problem: str) -> None:
    choice = chosen([Known("a", noisy(1)), other], ROWS, LATER)
    assert choice.weights == {"a": 1.0}
    assert problem in next(candidate.problem for candidate in choice.candidates if candidate.name == "b")


def test_interrupt_before_any_result_ends_the_run() -> None:
    with pytest.raises(KeyboardInterrupt):
        chosen([Known("a", KeyboardInterrupt())], ROWS, LATER)


def test_cheapest_learner_is_chosen_if_there_are_too_few_rows_to_compare() -> None:
    choice = chosen([Known("a", noisy(0)), Known("b", noisy(1))], ROWS.take(np.arange(9)), LATER)
    assert choice.weights == {"a": 1.0}
    assert choice.reason == "too few rows to compare models"


def test_many_rows_are_compared_on_one_fold() -> None:
    rows = table_rows("regression", 20_001)
    choice = chosen([Known("a", rows.labels[:, None] + 1)], rows, LATER)
    assert choice.candidates[0].error == pytest.approx(1)


def test_table_of_constants_is_learned_by_what_accepts_it() -> None:
    rows = replace(table_rows("binary", 60), matrix=np.ones((60, 2), np.float32), num_ids={})
    choice = chosen([Linear(), CatBoost()], rows, LATER)
    assert choice.weights == {"linear": 1.0}
    assert (
        "CatBoost cannot learn from the rows: All features are either constant or ignored"
        in choice.candidates[1].problem
    )
