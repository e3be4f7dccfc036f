import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from rankline.training.models.auto import learner, selection, trees
from rankline.training.models.auto.learner import Deadline, Fitted, Learner, LearnerError
from rankline.training.models.auto.linear import Linear
from rankline.training.models.auto.rows import Floats, Fold, Rows, folds
from rankline.training.models.auto.selection import _Judged, chosen
from rankline.training.models.auto.trees import CatBoost, LightGBM, Trees
from rankline.training.models.matrix import Matrix
from rankline.workflows.core.ctrl_c import STOPPING, text_of_ctrl_c
from rankline.workflows.schema.targets import Head
from tests.factories.training.tables import table_rows

ROWS = table_rows("regression", 1_200)
NOISE = np.random.default_rng(3).normal(0, 5, (3, 1_200, 1))
LATER = Deadline.after(1e6)


class Known(Learner):
    """A learner whose held-out scores are given."""

    def __init__(self, name: str, scores: Floats | BaseException, *packages: str) -> None:
        self.name, self.packages, self._scores = name, packages, scores  # type: ignore[misc]

    name: ClassVar[str]
    max_folds = 5
    num_folds = 0  # that it was given

    def held_out_scores(self, rows: Rows, folds: Sequence[Fold], deadline: Deadline) -> Floats:
        if isinstance(self._scores, BaseException):
            raise self._scores
        self.num_folds = len(folds)
        made = np.full((len(rows), 1), np.nan)
        for _, held in folds[: self.max_folds]:
            made[held] = self._scores[held]
        return made

    def fit(self, rows: Rows) -> Fitted:
        raise NotImplementedError


def noisy(*numbers: int, scale: float = 1.0) -> Any:
    return ROWS.labels[:, None] + scale * sum(NOISE[number] for number in numbers)


def test_best_learner_is_chosen_if_others_add_nothing() -> None:
    choice = chosen([Known("poor", noisy(0, 1)), Known("good", noisy(0))], ROWS, LATER)
    assert choice.weights == {"good": 1.0}
    assert re.fullmatch(
        r"good: RMSE [45]\.\d{4} on held-out training rows, -2\d\.\d% against poor, -\d\d\.\d% against the mean",
        choice.reason,
    )
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
    assert re.search(r" \+ .*: RMSE .* against [ab] alone, ", choice.reason)


@pytest.mark.parametrize(("share", "best"), [(0.99, "catboost"), (0.7, "other")])
def test_another_learner_must_be_clearly_better_than_catboost(share: float, best: str) -> None:
    scale = share * NOISE[0].std() / NOISE[1].std()
    judged = _Judged(ROWS, {"other": noisy(1, scale=scale), "catboost": noisy(0)}, is_few=False)
    assert judged._best_single() == best


def test_a_blend_on_few_rows_need_not_be_significantly_better(monkeypatch: pytest.MonkeyPatch) -> None:
    learners = [Known("a", noisy(0)), Known("b", noisy(1, scale=7.0))]
    assert chosen(learners, ROWS, LATER).weights == {"a": 1.0}
    partly = [Known("a", noisy(0)), Known("b", noisy(1, scale=7.0))]
    partly[1].max_folds = 1  # for lack of time
    assert chosen(partly, ROWS, LATER).weights == {"a": 1.0}
    monkeypatch.setattr(selection, "_FEW_ROWS", len(ROWS) + 1)
    assert sorted(chosen(learners, ROWS, LATER).weights) == ["a", "b"]


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


def test_learners_are_compared_on_the_folds_that_all_have_time_for() -> None:
    first, slow, last = (Known(name, noisy(number)) for number, name in enumerate("abc"))
    slow.max_folds = 2
    choice = chosen([first, slow, last], ROWS, LATER)
    assert (slow.num_folds, last.num_folds) == (5, 2)
    held = np.concatenate([held for _, held in folds(ROWS, 5)[:-3:-1]])
    assert [one.error for one in choice.candidates] == [
        pytest.approx(float(np.sqrt(np.mean(np.square(NOISE[number][held]))))) for number in range(3)
    ]


class Slow(Trees):
    """Trees for which each fold takes ten seconds."""

    name: ClassVar[str] = "slow"
    now_s = 0.0

    def _boosted(self, matrix: Matrix, rows: Rows, held: Any) -> tuple[Any, Sequence[float]]:
        self.now_s += 10
        return None, [1.0]

    def _logits(self, model: Any, matrix: Matrix, num_trees: int) -> Floats:
        return np.zeros((len(matrix), 1))

    def _trees(self, model: Any, head: Head) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(("limit_s", "num_folds"), [(100, 5), (35, 2), (25, 1)])
def test_trees_hold_out_as_many_folds_as_leave_time_to_train_on_all_rows(
    limit_s: float, num_folds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    monkeypatch.setattr(trees, "monotonic", lambda: slow.now_s)
    monkeypatch.setattr(learner, "monotonic", lambda: slow.now_s)
    scores = slow.held_out_scores(ROWS, folds(ROWS, 5), Deadline.after(limit_s))
    assert (~np.isnan(scores)).sum() == num_folds * len(ROWS) // 5


class Listening(Known):
    said = ""  # what Ctrl-C would print while its scores are computed

    def held_out_scores(self, rows: Rows, folds: Sequence[Fold], deadline: Deadline) -> Floats:
        self.said = text_of_ctrl_c()
        return super().held_out_scores(rows, folds, deadline)


def test_ctrl_c_says_which_models_are_left_to_choose_from() -> None:
    learners = [Listening(name, noisy(number)) for number, name in enumerate("abc")]
    chosen(learners, ROWS, LATER)
    assert [learner.said for learner in learners] == [
        STOPPING,
        "comparison stopped; a will be trained. Press Ctrl-C again to end.",
        "comparison stopped; the best of a and b will be trained. Press Ctrl-C again to end.",
    ]
    chosen([learners[0], Listening("b", KeyboardInterrupt())], ROWS, LATER)
    assert text_of_ctrl_c() == STOPPING


def test_interrupt_before_any_result_ends_the_run() -> None:
    with pytest.raises(KeyboardInterrupt):
        chosen([Known("a", KeyboardInterrupt())], ROWS, LATER)


def test_cheapest_learner_is_chosen_if_there_are_too_few_rows_to_compare() -> None:
    choice = chosen([Known("a", noisy(0)), Known("b", noisy(1))], ROWS.take(np.arange(9)), LATER)
    assert choice.weights == {"a": 1.0}
    assert choice.reason == "a was trained, because there are too few rows to compare models"


def test_cheapest_learner_is_chosen_if_the_time_limit_allows_no_comparison() -> None:
    choice = chosen([Linear(), CatBoost(), LightGBM()], ROWS, Deadline.after(-1))
    assert choice.weights == {"linear": 1.0}
    assert choice.reason == "linear was trained, because no model could be compared"
    needed = "it needs more time, which the time limit does not allow"
    assert [candidate.problem for candidate in choice.candidates] == [needed] * 3


def test_only_learner_that_cannot_be_compared_is_chosen() -> None:
    choice = chosen([Known("a", noisy(0), "no_such_module")], ROWS, LATER)
    assert choice.weights == {"a": 1.0}
    assert choice.reason == "a was trained, because no model could be compared"


def test_learner_whose_time_grows_too_much_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Known, "max_rows", 399)
    choice = chosen([Linear(), Known("a", noisy(0))], ROWS, LATER)
    assert choice.weights == {"linear": 1.0}
    assert choice.candidates[1].problem == "it is compared on at most 399 rows"


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
