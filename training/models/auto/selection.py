"""Compares learners by cross-validation and blends the best ones."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from rankline.training.models.auto.learner import Deadline, Learner, LearnerError, error_of
from rankline.training.models.auto.rows import Floats, Fold, Rows, fold_numbers, folds

_NUM_FOLDS = 5
_MAX_ROWS_IN_FOLDS = 20_000  # with more, one fold is held out once
_MAX_BLENDED = 3
_NUM_ADDITIONS = 25
_NUM_PARTS = 10  # of the held-out rows, from which the spread of an error is estimated


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The result of one learner in the comparison.

    Attributes:
        error: RMSE, logloss of the classes, or 1 - AUC on the rows held out; NaN if it could not be compared.
        spread: standard error of `error`.
        weight: share in the chosen model.
        problem: why it could not be compared; empty if it was.
    """

    name: str
    error: float = np.nan
    spread: float = np.nan
    weight: float = 0.0
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The outcome of a comparison: the learners of the chosen model with their weights, and why."""

    weights: Mapping[str, float]
    candidates: Sequence[Candidate]
    reason: str


def chosen(
    learners: Sequence[Learner], rows: Rows, deadline: Deadline, say: Callable[[str], None] = lambda _: None
) -> Choice:
    """Compare learners on held-out rows and choose the best one, or a blend if it is clearly better.

    The first learner must be the cheapest. It is chosen if nothing can be compared.
    """
    problems = {learner.name: _missing(learner) for learner in learners}
    scored: dict[str, Floats] = {}
    parts = _parts(rows)
    try:
        for learner in learners if parts else ():
            if problems[learner.name]:
                continue
            say(f"comparing {learner.name}")
            try:
                scored[learner.name] = learner.held_out_scores(rows, parts, deadline)
            except LearnerError as error:
                problems[learner.name] = str(error)
    except KeyboardInterrupt:
        if not scored:
            raise
        say("stopped comparing")
    if not scored:
        first = next(learner.name for learner in learners if not problems[learner.name])
        return Choice(weights={first: 1.0}, candidates=(), reason="too few rows to compare models")
    is_held = ~np.isnan(next(iter(scored.values()))[:, 0])
    held = rows.take(np.flatnonzero(is_held))
    judged = _Judged(held, {name: of_learner[is_held] for name, of_learner in scored.items()})
    weights, reason = judged.best()
    return Choice(weights=weights, reason=reason, candidates=judged.candidates(weights, problems))


def _missing(learner: Learner) -> str:
    absent = [module for module in learner.packages if find_spec(module) is None]
    return f"{absent[0]} is not installed" if absent else ""


def _parts(rows: Rows) -> Sequence[Fold]:
    if len(rows) < 2 * _NUM_FOLDS:
        return []
    found = folds(rows, _NUM_FOLDS)
    return found if len(rows) <= _MAX_ROWS_IN_FOLDS else found[-1:]


class _Judged:
    """The scores of learners for the rows held out."""

    def __init__(self, held: Rows, scores: Mapping[str, Floats]) -> None:
        self._held, self._scores = held, scores
        numbers = fold_numbers(held, _NUM_PARTS)
        self._numbers = [np.flatnonzero(numbers == number) for number in range(_NUM_PARTS)]
        self._errors = {name: self._error(own) for name, own in scores.items()}

    def best(self) -> tuple[dict[str, float], str]:
        """Return the weights of the best learner, or of a blend that is better by more than its standard error.

        The blend is selected greedily with replacement (Caruana et al. 2004, "Ensemble Selection from Libraries of
        Models").
        """
        single = min(self._errors, key=self._errors.__getitem__)
        counts, total = Counter({single: 1}), self._scores[single]
        best, best_counts = self._errors[single], Counter(counts)
        for size in range(2, _NUM_ADDITIONS + 1):
            allowed = self._scores if len(counts) < _MAX_BLENDED else counts
            errors = {name: self._error((total + self._scores[name]) / size) for name in allowed}
            added = min(errors, key=errors.__getitem__)
            counts[added] += 1
            total = total + self._scores[added]
            if errors[added] < best:
                best, best_counts = errors[added], Counter(counts)
        weights = {name: count / best_counts.total() for name, count in best_counts.items()}
        if len(weights) > 1:
            gain, spread = self._gain(
                np.sum([share * self._scores[name] for name, share in weights.items()], axis=0), single
            )
            if gain > spread:
                return weights, f"blending lowers the error of {single} by {gain / self._errors[single]:.1%}"
        others = [error for name, error in self._errors.items() if name != single]
        ahead = f", {1 - self._errors[single] / min(others):.1%} below the next" if others else ""
        return {single: 1.0}, f"the lowest error{ahead}"

    def candidates(self, weights: Mapping[str, float], problems: Mapping[str, str]) -> Sequence[Candidate]:
        return [
            Candidate(
                name=name,
                error=self._errors[name],
                spread=float(np.std(self._by_part(self._scores[name]), ddof=1) / _NUM_PARTS**0.5),
                weight=weights.get(name, 0.0),
            )
            if name in self._errors
            else Candidate(name=name, problem=problem or "the comparison was stopped")
            for name, problem in problems.items()
        ]

    def _error(self, scores: Floats) -> float:
        return error_of(self._held.head, self._held.labels, scores)

    def _by_part(self, scores: Floats) -> Floats:
        labels, head = self._held.labels, self._held.head
        return np.array([error_of(head, labels[part], scores[part]) for part in self._numbers if len(part)])

    def _gain(self, blend: Floats, single: str) -> tuple[float, float]:
        gains = self._by_part(self._scores[single]) - self._by_part(blend)
        return self._errors[single] - self._error(blend), float(np.std(gains, ddof=1) / len(gains) ** 0.5)
