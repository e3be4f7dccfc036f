import numpy as np
import numpy.typing as npt


def exact_auc(labels: npt.ArrayLike, scores: npt.ArrayLike, counts: npt.ArrayLike | None = None) -> float:
    """Return the exact AUC: the probability that a random positive scores higher than a random negative, with ties
    counting one half.

    This is the Mann-Whitney statistic with mid-ranks (Hanley and McNeil, 1982), computed in integers up to the final
    division. `counts` has the number of times that each row occurs.

    Raises:
        ValueError: shapes differ, a label is neither 0 nor 1, a score is NaN, or only one class is present.
    """
    label, score = np.asarray(labels), np.asarray(scores)
    if label.ndim != 1 or label.shape != score.shape:
        raise ValueError(
            f"labels have shape {label.shape} and scores {score.shape}, expected 1-D arrays of equal length."
        )
    positive = label == 1
    if not np.all(positive | (label == 0)):
        raise ValueError("labels contain values other than 0 and 1.")
    count = np.ones(len(label), np.int64) if counts is None else np.asarray(counts)
    num_positive = int(count[positive].sum())
    num_negative = int(count.sum()) - num_positive
    if num_positive == 0 or num_negative == 0:
        raise ValueError(f"AUC needs both classes, got {num_positive} positives and {num_negative} negatives.")
    order = np.argsort(score)
    in_order = score[order]
    if in_order[-1] != in_order[-1]:  # NaN sorts last
        raise ValueError("scores contain NaN.")
    starts = np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1])))
    in_group, positives_in_group = (np.add.reduceat(n[order], starts) for n in (count, count * positive))
    # Twice the mid-rank of tied scores at positions (end - size, end] is 2·end - size + 1.
    twice_rank_sum = int(np.sum(positives_in_group * (2 * np.cumsum(in_group) - in_group + 1)))
    return (twice_rank_sum - num_positive * (num_positive + 1)) / (2 * num_positive * num_negative)
