"""A linear autoencoder over items, solved in closed form and exported as one vector per user and per item.

Let X be the items that users like, (users, items), and P the inverse of XᵀX + λ. The item-to-item weights are the least
squares solution in which the weight of an item on itself is zero (Steck 2019, equation 8):

    B = 1 - P / diag(P)

The scores of all items are W B, where W is X with larger weights for recent items. The exported vectors are the first
singular vectors of the scores.
"""

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_matrix

from rankline.training.distributed.communicator import Array
from rankline.training.models.config import StepConfig
from rankline.training.models.factorization import EASEConfig
from rankline.training.models.factorization.tables import TablesModel
from rankline.workflows.schema.feature_spec import FeatureSpec

_OVERSAMPLED, _ITERATIONS = 16, 8
"""Parameters of the randomized SVD (Halko, Martinsson & Tropp 2011, "Finding structure with randomness")."""
_STEEPNESS = 4.0
"""Slope of the output function: Φ(4 (s - ½)) preserves the order of scores s, which are about 0 to 1."""


class EASE(TablesModel):
    def __init__(self, spec: FeatureSpec, model: EASEConfig, _: StepConfig | None = None) -> None:
        super().__init__(spec, model)
        self._model = model

    def begin(self, rows: Array, labels: Array, seed: int) -> None:
        """Fit the model completely; `learn` has nothing left to do."""
        self.tables = [np.zeros_like(table) for table in self.tables]
        user_table, item_table = (self.tables[side] for side in self.sides)
        user_table[:, -1] = -_STEEPNESS / 2
        users, items = (self.columns[side].of_rows(rows) for side in self.sides)
        liked = Liked(users, items, labels > 0.5, self._model.max_items)
        if not len(liked.users):
            return
        scale = np.sqrt(_STEEPNESS)
        of_users, of_items = singular_vectors(liked, self._model, seed)
        dimensions = of_users.shape[1]
        user_table[:, :dimensions] = scale * of_users.mean(axis=0)  # users without likes get the average user
        user_table[liked.users, :dimensions] = scale * of_users
        item_table[liked.items, :dimensions] = scale * of_items

    def learn(self, share: float) -> None:
        """Do nothing: `begin` fits the model completely."""


class Liked:
    """The distinct pairs of a user and an item that the user likes.

    Args:
        users, items: ids of each row, in chronological order.
        are_liked: whether the row is a like.
        max_items: number of items to keep, those with the most likes.

    Attributes:
        users, items: distinct ids.
        chosen: 1 for each pair, sparse (users, items).
        ages: for each pair the fraction of the user's rows that are later, sparse (users, items).
    """

    def __init__(self, users: Array, items: Array, are_liked: Array, max_items: int) -> None:
        most_liked = np.argsort(-np.bincount(items[are_liked]), kind="stable")[:max_items]
        kept = np.flatnonzero(are_liked & np.isin(items, most_liked))[::-1]  # keeps the latest of repeated pairs
        pairs, latest = np.unique(np.stack([users[kept], items[kept]]), axis=1, return_index=True)
        self.users, user_of = np.unique(pairs[0], return_inverse=True)
        self.items, item_of = np.unique(pairs[1], return_inverse=True)
        shape = len(self.users), len(self.items)
        self.chosen = csr_matrix((np.ones(len(latest)), (user_of, item_of)), shape=shape)
        self.ages = csr_matrix((_shares_after(users)[kept[latest]], (user_of, item_of)), shape=shape)


def singular_vectors(liked: Liked, model: EASEConfig, seed: int) -> tuple[Array, Array]:
    """Return user vectors of shape (users, K) and item vectors of shape (items, K), whose dot products approximate the
    scores W B.
    """
    weighted = liked.chosen.copy()
    weighted.data = np.exp(-model.recency * liked.ages.data)
    inverse, diagonal = _inverse(liked.chosen, model.regularization)

    def forward(items: Array) -> Array:
        scores: Array = weighted @ (items - inverse(items / diagonal[:, None]))
        return scores

    def backward(users: Array) -> Array:
        of_items = weighted.T @ users
        found: Array = of_items - inverse(of_items) / diagonal[:, None]
        return found

    width = min(model.served_dim + _OVERSAMPLED, *weighted.shape)
    basis = np.random.default_rng(seed).normal(size=(weighted.shape[1], width))
    for _ in range(_ITERATIONS):
        basis, _ = np.linalg.qr(backward(forward(basis)))
    left, values, right = np.linalg.svd(forward(basis), full_matrices=False)
    kept = slice(min(width, model.served_dim))
    return (left * values)[:, kept], (basis @ right.T)[:, kept]


def _inverse(chosen: csr_matrix, regularization: float) -> tuple[Callable[[Array], Array], Array]:
    """Return a function that multiplies by the matrix P = (XᵀX + λ)⁻¹, together with the diagonal of P. Only the
    smaller Gram matrix is inverted.
    """
    num_users, num_items = chosen.shape
    if num_items <= num_users:
        inverted = np.linalg.inv((chosen.T @ chosen).toarray() + regularization * np.eye(num_items))
        return inverted.__matmul__, inverted.diagonal().copy()
    # Woodbury's identity: λP = 1 - Xᵀ (XXᵀ + λ)⁻¹ X
    of_users = np.linalg.inv((chosen @ chosen.T).toarray() + regularization * np.eye(num_users))
    explained = np.asarray(chosen.multiply((chosen.T @ of_users).T).sum(axis=0)).ravel()
    diagonal = (1 - explained) / regularization
    return lambda items: (items - chosen.T @ (of_users @ (chosen @ items))) / regularization, diagonal


def _shares_after(users: Array) -> Array:
    """Return, for each row, the fraction of the same user's rows that come later, from nearly 1 down to 0."""
    order = np.argsort(users, kind="stable")
    _, first, counts = np.unique(users[order], return_index=True, return_counts=True)
    shares = np.empty(len(users))
    shares[order] = 1 - (np.arange(len(users)) - np.repeat(first, counts) + 1) / np.repeat(counts, counts)
    return shares
