"""Evaluation of a model on a split during training."""

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
    """Score a split, with the averaged weights if there are any, and compute its metrics.

    Args:
        batches: the split, or this worker's share of it.
        heads: the labels of the batches.
        group_by: input whose values are the groups of `gauc`; None, or a name that is not an input, for no groups.
        split: name of the split in messages, such as "validation".
        world: the workers that score the split together; the metrics cover the rows of all workers.
        first_rows: collects this worker's first rows.

    Returns:
        See `rankline.training.evaluation.measured`; bit-identical on all workers.

    Raises:
        DataError: the labels do not fit the heads, or the split has only one class.
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
        # On different machines workers may round differently, and would then stop at different epochs.
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
