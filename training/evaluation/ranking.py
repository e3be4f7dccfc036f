"""Ranking metrics: how well a model ranks all items for a user, compared to the items that the user chose later.

Recall and normalized discounted cumulative gain (NDCG) of the first k items as in Liang et al. 2018 ("Variational
Autoencoders for Collaborative Filtering", section 4.1), over all candidates. Negatives are not sampled, since that can
change which model is better (Krichene and Rendle 2020, "On Sampled Metrics for Item Recommendation").
"""

import numpy as np

from rankline.training.distributed.communicator import Array


class Ranking:
    """Mean recall and NDCG of the top items, accumulated user by user in constant memory.

    Items with equal scores are in random order, and the metrics are expected values: a model that gives every item the
    same score gets the metrics of random ranking.
    """

    def __init__(self, first: int = 20) -> None:
        self._first, self._num_users = first, 0
        self._sums = np.zeros(2)
        gains = 1 / np.log2(np.arange(first) + 2)
        self._hits, self._gain = np.arange(first + 1.0), np.concatenate([[0.0], np.cumsum(gains)])

    def add(self, scores: Array, relevant: Array) -> None:
        """Add a user. Users who chose none of the candidates are skipped.

        Args:
            scores: scores of all candidates, shape (C,).
            relevant: whether the user chose each candidate, bool of shape (C,).
        """
        if np.isnan(scores).any():
            raise ValueError("scores contain NaN.")
        if not (num_relevant := int(relevant.sum())):
            return
        in_order, chosen = np.sort(-scores), -scores[relevant]
        above, not_below = (np.searchsorted(in_order, chosen, side=side) for side in ("left", "right"))
        best = min(num_relevant, self._first)
        for number, reached in enumerate((self._hits, self._gain)):
            within = reached[np.minimum(not_below, self._first)] - reached[np.minimum(above, self._first)]
            self._sums[number] += np.sum(within / (not_below - above)) / reached[best]
        self._num_users += 1

    def figures(self) -> dict[str, float]:
        """Return `recall_at_K` (hits divided by possible hits), `ndcg_at_K`, and the number of users counted."""
        if not self._num_users:
            raise ValueError("no user chose any of the candidates.")
        recall, ndcg = (self._sums / self._num_users).tolist()
        return {f"recall_at_{self._first}": recall, f"ndcg_at_{self._first}": ndcg, "users": float(self._num_users)}
