"""Hugging Face datasets: a memory-mapped Arrow table, shuffled by indices and read in batches."""

from collections.abc import Iterator
from pathlib import Path

from datasets import Dataset, load_dataset
from rate import COLUMNS, files, main


def load(directory: Path, cache: Path) -> Dataset:
    return load_dataset(
        "parquet", data_files=files(directory), split="train", cache_dir=str(cache), columns=list(COLUMNS)
    )


def batches(directory: Path, cache: Path, batch_size: int) -> Iterator[int]:
    for batch in load(directory, cache).with_format("numpy").shuffle(seed=0).iter(batch_size):
        yield len(batch["rating"])


if __name__ == "__main__":
    main(batches, load)
