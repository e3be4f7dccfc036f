"""MosaicML Streaming: its own shards, read and shuffled by a StreamingDataset in a DataLoader with workers."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
from rate import COLUMNS, files, main
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

_MAX_ROWS = 1_000_000  # it handles rows one by one, and writing all would take minutes


def convert(directory: Path, cache: Path) -> None:
    if (cache / "index.json").exists():
        return
    rows = pq.ParquetFile(files(directory)[0]).read(columns=list(COLUMNS)).slice(0, _MAX_ROWS)
    columns = {"userId": "int64", "movieId": "int64", "rating": "float32"}
    with MDSWriter(out=str(cache), columns=columns) as out:
        for row in zip(*(rows[name].to_numpy() for name in COLUMNS), strict=True):
            out.write(dict(zip(COLUMNS, row, strict=True)))


def batches(_: Path, cache: Path, batch_size: int) -> Iterator[int]:
    rows = StreamingDataset(local=str(cache), shuffle=True, batch_size=batch_size)
    for batch in StreamingDataLoader(rows, batch_size=batch_size, num_workers=len(os.sched_getaffinity(0))):
        yield len(batch["rating"])


if __name__ == "__main__":
    main(batches, convert)
