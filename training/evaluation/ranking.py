"""How well a model ranks all items for a user: what it puts first, against what the user chose later.

Recall and normalised discounted cumulative gain of the first k, as Liang et al. 2018 ("Variational Autoencoders for
Collaborative Filtering", section 4.1) define them, over all candidates: no negatives are sampled, which would change
the order of models (Krichene and Rendle 2020, "On Sampled Metrics for Item Recommendation").
"""

import numpy as np

from rankline.training.distributed.communicator import Array


class Ranking:
    """Recall and NDCG of the first items, mean over users, who are taken in one by one; nothing of them is held.

    Items with equal scores come in random order, and each figure is the expected one: a model that gives every item the
    same score has that of chance.
    """

    def __init__(self, first: int = 20) -> None:
        self._first, self._num_users = first, 0
        self._sums = np.zeros(2)
        gains = 1 / np.log2(np.arange(first) + 2)
        self._hits, self._gain = np.arange(first + 1.0), np.concatenate([[0.0], np.cumsum(gains)])

    def add(self, scores: Array, relevant: Array) -> None:
        """Take in a user.

        Args:
            scores: of all candidates of this user, shape (C,).
            relevant: whether the user chose each, bool of shape (C,); a user who chose none does not count.

        Raises:
            ValueError: a score is NaN.
        """
        if np.isnan(scores).any():
            raise ValueError("scores hold NaN.")
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
        """`recall_at_K`, hits by what could be hit, and `ndcg_at_K`; and how many users counted.

        Raises:
            ValueError: none did.
        """
        if not self._num_users:
            raise ValueError("no user chose any of the candidates.")
        recall, ndcg = (self._sums / self._num_users).tolist()
        return {f"recall_at_{self._first}": recall, f"ndcg_at_{self._first}": ndcg, "users": float(self._num_users)}
