"""NVTabular operators that NVTabular 23.8 lacks, or does wrongly on a CPU.

Each is importable by name, so a saved workflow refers to it and holds no code. Each has a lowering in
`serving/lowerings.py`.
"""

from typing import Any

import numpy as np
import pandas as pd

from workflows.categories import FIRST_UNSEEN_ID
from workflows.hashing import bucket_of
from workflows.upstream import nvt, ops  # first, so that what it imports is imported quietly

from merlin.schema import Tags  # isort: skip


class NullToEmptyList(ops.Operator):  # type: ignore[misc]  # NVTabular has no annotations
    """Replace a missing list by an empty one.

    A left join leaves null where the key is unknown, and `Categorify` cannot encode a null list.
    """

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Apply to each selected list column."""
        result = df[col_selector.names].copy()
        for name in col_selector.names:
            result[name] = pd.Series(
                [value if isinstance(value, (list, np.ndarray)) else [] for value in df[name]],
                index=df.index,
                dtype=object,
            )
        return result


class GreaterThan(ops.Operator):  # type: ignore[misc]
    """1.0 where a number is above `threshold`, else 0.0: a graded label made binary.

    Args:
        threshold: the largest value that still counts as negative.
    """

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Apply to each selected column."""
        return (df[col_selector.names] > self.threshold).astype("float32")

    @property
    def output_dtype(self) -> Any:
        """float32, what a loss wants."""
        return np.float32

    @property
    def output_tags(self) -> list[Tags]:
        """Marks the column as a target."""
        return [Tags.TARGET]


class HashedCategorify(ops.Categorify):  # type: ignore[misc]
    """`Categorify` whose unseen integer values fall into `num_buckets` buckets by their own hash.

    NVTabular 23.8 hashes the row's position together with the value on a CPU (dask's `hash_object_dispatch` includes
    the index), so the same unseen value gets another id in every row and nothing can be served that matches training.
    Ids: 0 padding, 1 null, 2 … num_buckets + 1 unseen, then the vocabulary by frequency.
    """

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Encode, then mend the ids of unseen values."""
        result = super().transform(col_selector, df)
        for name in col_selector.names:
            ids = result[name].to_numpy(copy=True)
            unseen = (ids >= FIRST_UNSEEN_ID) & (ids < FIRST_UNSEEN_ID + self.num_buckets)
            ids[unseen] = FIRST_UNSEEN_ID + bucket_of(df[name].to_numpy()[unseen].astype(np.int64), self.num_buckets)
            result[name] = ids
        return result
