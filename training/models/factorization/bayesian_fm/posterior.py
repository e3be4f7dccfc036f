"""The mean of many draws of a factorization machine as a single machine with few dimensions.

The mean of the dot products of two ids' vectors, over S draws of K dimensions, is the dot product of their S·K
concatenated values divided by S. The first principal axes of these values preserve the dot products (Eckart & Young
1936). On `ml-latest-small`, 32 of 2,880 dimensions have the AUC of all dimensions to within 0.0003.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_KEPT = 4
"""Dimensions to keep of the draws so far, as a multiple of the requested dimensions."""


class Posterior:
    """Accumulates draws in constant memory.

    Args:
        frequencies: rows per id, (ids,); weights of its dot products.
        dimensions: dimensions of the result.
    """

    def __init__(self, frequencies: Array, dimensions: int) -> None:
        self.num_draws = 0
        self._frequencies, self._dimensions = frequencies / max(1, frequencies.sum()), dimensions
        self._vectors = np.zeros((len(frequencies), 0), np.float32)
        self._linear, self._offset = np.zeros(len(frequencies)), 0.0
        self._scores: Array = np.zeros(1)
        self._squares: Array = np.zeros(1)

    def add(self, weights: Array, offset: float, scores: Array) -> None:
        """Add a draw.

        Args:
            weights: weights of each id, (factors + 1, ids); the last row is linear.
            offset: constant term of all rows.
            scores: f of each training row, (N,).
        """
        self.num_draws += 1
        self._vectors = np.concatenate([self._vectors, weights[:-1].T.astype(np.float32)], axis=1)
        if self._vectors.shape[1] > 2 * _KEPT * self._dimensions:
            self._vectors = self._principal(_KEPT * self._dimensions)
        self._linear, self._offset = self._linear + weights[-1], self._offset + offset
        self._scores, self._squares = self._scores + scores, self._squares + scores**2

    def mean(self) -> tuple[Array, float]:
        """Return the mean machine: weights of each id, (ids, dimensions + 1), the last one linear; and the offset."""
        vectors = self._principal(self._dimensions) / np.sqrt(self.num_draws)
        narrow = self._dimensions - vectors.shape[1]
        linear = self._linear[:, None] / self.num_draws
        return np.concatenate([np.pad(vectors, ((0, 0), (0, narrow))), linear], axis=1), self._offset / self.num_draws

    def variance(self) -> float:
        """Return the variance of a row's score over the draws, averaged over the training rows."""
        mean = self._scores / self.num_draws
        return float(np.mean(self._squares / self.num_draws - mean**2))

    def _principal(self, dimensions: int) -> Array:
        weighted = self._vectors * self._frequencies[:, None]
        _, axes = np.linalg.eigh(weighted.T.astype(np.float64) @ self._vectors)
        kept: Array = self._vectors @ axes[:, ::-1][:, :dimensions].astype(np.float32)
        return kept
