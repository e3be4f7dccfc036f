"""Hugging Face datasets: a memory-mapped Arrow table, read as a stream and shuffled in a buffer.

On 10M rows, this was 200 times as fast as `Dataset.shuffle`, which reads row by row, and 1.4 times as fast as with two
workers of a DataLoader.
"""

from collections.abc import Iterator
from pathlib import Path

from datasets import Dataset, load_dataset
from rate import COLUMNS, files, main

_NUM_SHARDS = 64
_BUFFERED_BATCHES = 8


def load(directory: Path, cache: Path) -> Dataset:
    return load_dataset(
        "parquet", data_files=files(directory), split="train", cache_dir=str(cache), columns=list(COLUMNS)
    )


def batches(directory: Path, cache: Path, batch_size: int) -> Iterator[int]:
    stream = load(directory, cache).to_iterable_dataset(num_shards=_NUM_SHARDS).with_format("numpy")
    for batch in stream.shuffle(seed=0, buffer_size=_BUFFERED_BATCHES * batch_size).batch(batch_size):
        yield len(batch["rating"])


if __name__ == "__main__":
    main(batches, load)
