"""Compares learners by cross-validation and blends the best ones."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from rankline.training.evaluation import objective_of
from rankline.training.models.auto import CATBOOST, LINEAR
from rankline.training.models.auto.learner import Deadline, Learner, LearnerError, error_of
from rankline.training.models.auto.rows import Floats, Fold, Rows, fold_numbers, folds
from rankline.workflows.core.ctrl_c import STOPPING, ctrl_c_prints
from rankline.workflows.core.formatting import quality_figure
from rankline.workflows.schema.targets import REGRESSION

_NUM_FOLDS = 5
_MAX_ROWS_IN_FOLDS = 20_000  # with more, one fold is held out once
_MAX_BLENDED = 3
_NUM_ADDITIONS = 25
_FEW_ROWS = 1_000  # with fewer, no difference is significant, but a blend is better on average
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
    learners: Sequence[Learner], rows: Rows, deadline: Deadline, say: Callable[[str, float], None] = lambda _, __: None
) -> Choice:
    """Compare learners on held-out rows, and choose the best one or a blend.

    A blend must be better than the best learner by more than the standard error of the difference. With fewer than
    `_FEW_ROWS` rows, it only has to be better.

    The first learner must be the cheapest. It is chosen if nothing can be compared. Ctrl-C ends the comparison and
    chooses among the learners compared by then.
    """
    problems = {learner.name: _unusable(learner, rows) for learner in learners}
    scored: dict[str, Floats] = {}
    parts = _parts(rows)
    compared = [learner for learner in learners if not problems[learner.name]] if parts else []
    try:
        for number, learner in enumerate(compared):
            say(f"comparing {learner.name}, {number + 1} of {len(compared)}", number / len(compared))
            own = Deadline.after(deadline.left_s / (len(compared) - number))
            try:
                with ctrl_c_prints(_stopped(scored)):
                    scores = learner.held_out_scores(rows, parts, own)
            except LearnerError as error:
                problems[learner.name] = str(error).rstrip(".")
                continue
            scored[learner.name] = scores
            parts = [part for part in parts if not np.isnan(scores[part[1][0], 0])]  # the time may allow only some
    except KeyboardInterrupt:
        if not scored:
            raise
    if not scored:
        first = learners[0].name
        why = "no model could be compared" if parts else "there are too few rows to compare models"
        candidates = [Candidate(name=name, problem=problem or why) for name, problem in problems.items()]
        return Choice(weights={first: 1.0}, candidates=candidates, reason=f"{first} was trained, because {why}")
    is_held = ~np.any([np.isnan(of_learner[:, 0]) for of_learner in scored.values()], axis=0)
    held = rows.take(np.flatnonzero(is_held))
    of_held = {name: of_learner[is_held] for name, of_learner in scored.items()}
    judged = _Judged(held, of_held, is_few=len(rows) < _FEW_ROWS)
    weights, reason = judged.best()
    return Choice(weights=weights, reason=reason, candidates=judged.candidates(weights, problems))


def _stopped(scored: Collection[str]) -> str:
    """Return the text to print if Ctrl-C is pressed after these learners were compared."""
    if not scored:
        return STOPPING
    *others, last = scored
    best = f"the best of {', '.join(others)} and {last}" if others else last
    return f"comparison stopped; {best} will be trained. Press Ctrl-C again to end."


def _unusable(learner: Learner, rows: Rows) -> str:
    if absent := [module for module in learner.packages if find_spec(module) is None]:
        return f"{absent[0]} is not installed"
    if learner.max_rows is not None and len(rows) > learner.max_rows:
        return f"it is compared on at most {learner.max_rows:,} rows"
    return ""


def _parts(rows: Rows) -> Sequence[Fold]:
    if len(rows) < 2 * _NUM_FOLDS:
        return []
    found = folds(rows, _NUM_FOLDS)[::-1]  # first the latest rows, if they are in order
    return found if len(rows) <= _MAX_ROWS_IN_FOLDS else found[:1]


class _Judged:
    """The scores of learners for held-out rows. If there are few rows, a blend need not be significantly better."""

    def __init__(self, held: Rows, scores: Mapping[str, Floats], *, is_few: bool) -> None:
        self._held, self._scores, self._is_few = held, scores, is_few
        numbers = fold_numbers(held, _NUM_PARTS)
        self._numbers = [np.flatnonzero(numbers == number) for number in range(_NUM_PARTS)]
        self._errors = {name: self._error(own) for name, own in scores.items()}

    def best(self) -> tuple[dict[str, float], str]:
        """Return the weights of the best learner or of a blend, and the reason for the choice.

        The blend is selected greedily with replacement (Caruana et al. 2004, "Ensemble Selection from Libraries of
        Models").
        """
        single = self._best_single()
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
            blend: Floats = np.sum([share * self._scores[name] for name, share in weights.items()], axis=0)
            if self._is_few or self._is_better(blend, single):
                parts = " + ".join(f"{share:.0%} {name}" for name, share in weights.items())
                return weights, self._reason(parts, best, {f"{single} alone": self._errors[single]})
        others = {name: error for name, error in self._errors.items() if name != single}
        second = min(others, key=others.__getitem__, default=None)
        return {single: 1.0}, self._reason(single, self._errors[single], {second: others[second]} if second else {})

    def _reason(self, chosen: str, error: float, others: Mapping[str, float]) -> str:
        objective, baseline = objective_of([self._held.head]), self._baseline()
        is_auc = objective.higher_is_better
        value = 1 - error if is_auc else error
        if baseline[0] not in others and baseline[0] != chosen:
            others = {**others, baseline[0]: baseline[1]}
        ahead = [
            f"{other - error:+.4f} against {name}" if is_auc else f"{error / other - 1:+.1%} against {name}"
            for name, other in others.items()
        ]
        own = f"{objective.title} {quality_figure(value)} on held-out training rows"
        return f"{chosen}: {', '.join([own, *ahead])}"

    def _baseline(self) -> tuple[str, float]:
        """Return the name and the error of a simple model: logistic regression, or always predicting the mean."""
        if self._held.head.task != REGRESSION and LINEAR in self._errors:
            return LINEAR, self._errors[LINEAR]
        means = self._held.targets.mean(axis=0)
        return "the mean", self._error(np.broadcast_to(means, (len(self._held), len(means))))

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

    def _best_single(self) -> str:
        """Return the learner with the lowest error, or CatBoost unless that error is clearly lower: it may be luck."""
        best = min(self._errors, key=self._errors.__getitem__)
        return best if CATBOOST not in self._scores or self._is_better(self._scores[best], CATBOOST) else CATBOOST

    def _is_better(self, scores: Floats, than: str) -> bool:
        """Whether the scores have a lower error than a learner, by more than the standard error of the difference."""
        gains = self._by_part(self._scores[than]) - self._by_part(scores)
        return self._errors[than] - self._error(scores) > float(np.std(gains, ddof=1) / len(gains) ** 0.5)
