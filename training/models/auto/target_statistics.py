"""Target statistics: each id becomes the mean label of its rows, one column per class.

An id with few rows gets a value near the mean of all rows (Micci-Barreca 2001, "A Preprocessing Scheme for
High-Cardinality Categorical Attributes in Classification and Prediction Problems"). For the rows that a model learns
from, the statistics come from other rows, as they do for the rows it will score.
"""

from typing import TYPE_CHECKING

import numpy as np

from rankline.training.models.auto.rows import Floats, Ints, Rows, fold_numbers
from rankline.training.models.matrix import Matrix, add_places

if TYPE_CHECKING:
    from rankline.workflows.onnx.graph import Graph

_PRIOR_ROWS = 10.0  # weight of the mean of all rows, in rows
_NUM_FOLDS = 10
_MIN_ROWS = 500  # with fewer, the noise of the means costs more than they tell
_MIN_IDS = 6  # with fewer values besides padding, null and unseen, a tree separates the ids themselves


class TargetStatistics:
    def __init__(self, rows: Rows) -> None:
        enough = len(rows) >= _MIN_ROWS
        sizes = {column: count for column, count in rows.num_ids.items() if enough and count >= _MIN_IDS}
        self._columns = list(sizes)
        self._begins = np.cumsum([0, *sizes.values()])[:-1]
        self._num_ids = sum(sizes.values())
        self._table = self._means(rows)

    def of(self, matrix: Matrix) -> Matrix:
        """Return the statistics of the ids in a matrix: (N, columns × classes)."""
        return self._looked_up(self._table, self._places(matrix))

    def of_learned(self, rows: Rows) -> Matrix:
        """Return the statistics of the rows that they were made from, each from the rows of the other folds."""
        numbers, places = fold_numbers(rows, _NUM_FOLDS), self._places(rows.matrix)
        prior = np.broadcast_to(rows.targets.mean(axis=0), self._table.shape)
        made = self._looked_up(prior, places)
        for number in range(_NUM_FOLDS):
            others = np.flatnonzero(numbers < number if rows.in_order else numbers != number)
            held = np.flatnonzero(numbers == number)
            if len(others) and len(held):
                made[held] = self._looked_up(self._means(rows.take(others)), places[held])
        return made

    def add_to(self, graph: "Graph", matrix: str) -> str | None:
        """Add the statistics to a graph and return their name, or None if no column has any."""
        if not self._columns:
            return None
        places = add_places(graph, matrix, self._columns, self._begins)
        found = graph.add("Gather", graph.constant(self._table, np.float32), places)
        return graph.add("Reshape", found, graph.constant([-1, len(self._columns) * self._table.shape[1]]))

    def _places(self, matrix: Matrix) -> Ints:
        places: Ints = matrix[:, self._columns].astype(np.int64) + self._begins
        return places

    def _means(self, rows: Rows) -> Floats:
        places, targets = self._places(rows.matrix), rows.targets
        counts = np.bincount(places.ravel(), minlength=self._num_ids)[:, None]
        weights = np.repeat(targets, len(self._columns), axis=0)
        sums = np.stack([np.bincount(places.ravel(), of_class, self._num_ids) for of_class in weights.T], axis=1)
        means: Floats = (sums + _PRIOR_ROWS * targets.mean(axis=0)) / (counts + _PRIOR_ROWS)
        return means

    def _looked_up(self, table: Floats, places: Ints) -> Matrix:
        return table[places].reshape(len(places), -1).astype(np.float32)
