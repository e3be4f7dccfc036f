"""tf.data over Arrow: row groups in random order, shuffled as a whole, and cut into batches."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf
from rate import COLUMNS, files, main, read_groups

_BUFFERED_GROUPS = 8


def batches(directory: Path, _: Path, batch_size: int) -> Iterator[int]:
    opened = [pq.ParquetFile(path) for path in files(directory)]
    groups = [(file, group) for file in opened for group in range(file.num_row_groups)]
    rng = np.random.default_rng(0)
    rng.shuffle(groups)

    def buffers() -> Iterator[dict[str, np.ndarray]]:
        for first in range(0, len(groups), _BUFFERED_GROUPS):
            columns = read_groups(groups[first : first + _BUFFERED_GROUPS], use_threads=True)
            order = rng.permutation(len(columns[COLUMNS[0]]))
            yield {name: values[order] for name, values in columns.items()}

    kinds = dict(zip(COLUMNS, (tf.int64, tf.int64, tf.float32), strict=True))
    spec = {name: tf.TensorSpec((None,), kind) for name, kind in kinds.items()}
    rows = tf.data.Dataset.from_generator(buffers, output_signature=spec)
    for batch in rows.rebatch(batch_size).prefetch(tf.data.AUTOTUNE):
        yield int(batch["rating"].shape[0])


if __name__ == "__main__":
    main(batches)
