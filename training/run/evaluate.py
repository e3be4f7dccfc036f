"""Scoring a split by a model that is being trained, and measuring the scores."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rankline.training.distributed.communicator import SOLO, World
from rankline.training.evaluation import measured
from rankline.training.evaluation.first_rows import FirstRows
from rankline.training.evaluation.scored_rows import Tally
from rankline.training.trainers.base import Batches, Trainer
from rankline.workflows.core.errors import DataError
from rankline.workflows.schema.label_stats import expected_labels
from rankline.workflows.schema.targets import Head


def evaluate(
    trainer: Trainer,
    batches: Batches,
    heads: Sequence[Head],
    *,
    group_by: str | None,
    split: str,
    world: World = SOLO,
    first_rows: FirstRows | None = None,
) -> dict[str, float]:
    """Score a split with the averaged weights, if there are any, and measure the scores.

    Args:
        trainer: the model.
        batches: the split, or this worker's share of it.
        heads: what its labels are.
        group_by: input whose values are the groups of `gauc`; None, or no input, for none.
        split: what the split is called, such as "validation"; for messages.
        world: the workers that score the split together; what is measured are the scores of all.
        first_rows: takes this worker's first rows in.

    Returns:
        See `rankline.training.evaluation.measured`; the same for all workers, bit by bit.

    Raises:
        DataError: the labels do not fit the heads, or the split has one class only.
        FloatingPointError: a score is not finite.
    """
    tally = Tally(heads)
    with trainer.averaged():
        for inputs, label in batches:
            groups = trainer.array(inputs[group_by]) if group_by is not None and group_by in inputs else None
            scored = trainer.array(label), trainer.score(inputs), groups
            with _explained(heads, split):
                tally.add(*scored)
            if first_rows is not None:
                first_rows.add(*scored[:2])
    rows = tally.rows(world)
    with _explained(heads, split):
        # Workers on different machines may round differently, and would not stop at the same epoch.
        figures: dict[str, float] = world.all_gather_object(measured(heads, rows))[0]
    return figures


@contextmanager
def _explained(heads: Sequence[Head], split: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        expected = " and ".join(dict.fromkeys(map(expected_labels, heads))).replace("0 or 1", "0 and 1")
        raise DataError(
            f"the {split} data cannot be measured: {error} Prepare it again, with rows of each label: {expected}."
        ) from None
