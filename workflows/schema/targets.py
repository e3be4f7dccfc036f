"""Prediction targets with one head per label column. A head's task determines which labels are valid."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rankline.workflows.core.errors import SpecError
from rankline.workflows.core.validation import validated
from rankline.workflows.schema.tensor_names import SCORE

BINARY, REGRESSION, MULTICLASS = TASKS = ("binary", "regression", "multiclass")
_MAX_CLASSES = 1 << 16
"""The largest number of classes. float32 labels could represent integers up to 2**24."""


@dataclass(frozen=True)
class Head:
    """A label column and its learning task.

    Labels are 0 or 1 for `binary`, any finite number for `regression`, and 0 … n - 1 for `multiclass`. If there are
    several heads, a row may lack a label; it then does not count for that head. A regression model learns
    (label - mean) / deviation, with those of the training rows, and serves values in the label's unit.

    Raises:
        SpecError: a value is out of range, or values contradict each other.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  (pydantic's interface)

    column: str
    task: str = BINARY  # one of `TASKS`
    classes: tuple[str, ...] = ()  # names of the classes in numerical order; for `multiclass` only
    weight: float = 1.0  # weight of this head's loss relative to the other heads
    mean: float = 0.0  # computed by `prepare`, as is the deviation; for `regression` only
    deviation: float = 1.0

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise self._refused("task", f"one of {', '.join(TASKS)}")
        expected = self.task == MULTICLASS
        if expected != bool(self.classes) or len(self.classes) == 1 or len(self.classes) > _MAX_CLASSES:
            raise self._refused("classes", f"2 to {_MAX_CLASSES:,} names" if expected else f"none for {self.task}")
        if twice := sorted({name for name in self.classes if self.classes.count(name) > 1}):
            raise SpecError(f"head {self.column!r}: classes contains {twice} more than once.")
        for name in ("weight", "deviation"):
            if not 0 < getattr(self, name) < math.inf:
                raise self._refused(name, "a finite number above 0")
        if not math.isfinite(self.mean):
            raise self._refused("mean", "a finite number")

    @property
    def width(self) -> int:
        """The number of output values per row, which is the number of classes for `multiclass` and 1 otherwise."""
        return len(self.classes) or 1

    def _refused(self, name: str, expected: str) -> SpecError:
        return SpecError(f"head {self.column!r}: {name} is {getattr(self, name)!r}, expected {expected}.")

    def entry(self) -> dict[str, Any]:
        usual = Head(self.column)
        given = {choice.name: getattr(self, choice.name) for choice in fields(self)}
        chosen = {name: value for name, value in given.items() if value != getattr(usual, name)}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in chosen.items()}
        return {"column": self.column, "task": self.task} | plain

    @classmethod
    def from_entry(cls, entry: Any) -> "Head":
        if isinstance(entry, Mapping) and isinstance(classes := entry.get("classes"), list):
            entry = {**entry, "classes": list(map(str, classes))}
        return validated(cls, entry, "a head")


def usual_heads(columns: Sequence[str]) -> tuple[Head, ...]:
    """Return a default binary head for each label column."""
    return tuple(map(Head, columns))


def output_names(heads: Sequence[Head]) -> tuple[str, ...]:
    """Return a model's output names, which are the label columns, or `SCORE` for a single binary head."""
    return (SCORE,) if [head.task for head in heads] == [BINARY] else tuple(head.column for head in heads)


def score_names(output: str, classes: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the score columns of an output, either `score_OUTPUT` or one column `score_OUTPUT_CLASS` per class.

    The output `SCORE` gets no second `score_` prefix.
    """
    stem = output if output == SCORE else f"{SCORE}_{output}"
    return tuple(f"{stem}_{name}" for name in classes) or (stem,)
