"""Area under the ROC curve, exactly."""

import numpy as np
import numpy.typing as npt


def exact_auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Probability that a random positive is scored above a random negative; a tie counts one half.

    The Mann-Whitney statistic with mid-ranks (Hanley and McNeil, 1982), in integers until the last division.

    Args:
        labels: 0/1 or bool, shape (num_rows,).
        scores: finite or infinite numbers, shape (num_rows,); only their order counts.

    Raises:
        ValueError: shapes differ, a label is neither 0 nor 1, a score is NaN, or only one class is present.
    """
    label, score = np.asarray(labels), np.asarray(scores)
    if label.ndim != 1 or label.shape != score.shape:
        raise ValueError(f"labels have shape {label.shape}, scores {score.shape}; expected the same number of rows.")
    positive = label == 1
    if not np.all(positive | (label == 0)):
        raise ValueError("labels hold values other than 0 and 1.")
    num_positive = int(np.count_nonzero(positive))
    num_negative = len(label) - num_positive
    if num_positive == 0 or num_negative == 0:
        raise ValueError(f"AUC needs both classes, got {num_positive} positives and {num_negative} negatives.")
    order = np.argsort(score)
    in_order = score[order]
    if in_order[-1] != in_order[-1]:  # NaN sorts last
        raise ValueError("scores hold NaN.")
    starts = np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1])))
    ends = np.append(starts[1:], len(in_order))
    positives_in_group = np.add.reduceat(positive[order].astype(np.int64), starts)
    # Twice the mid-rank of a group of ties that fills the positions [start, end) is start + end + 1.
    twice_rank_sum = int(np.sum(positives_in_group * (starts + ends + 1)))
    return (twice_rank_sum - num_positive * (num_positive + 1)) / (2 * num_positive * num_negative)
