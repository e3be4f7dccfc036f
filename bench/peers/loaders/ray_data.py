"""Ray Data: Parquet blocks, shuffled in a local buffer."""

from collections.abc import Iterator
from pathlib import Path

import ray
from rate import COLUMNS, files, main

_BUFFERED_BATCHES = 8


def start(_directory: Path, _cache: Path) -> None:
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")


def batches(directory: Path, _: Path, batch_size: int) -> Iterator[int]:
    rows = ray.data.read_parquet(files(directory), columns=list(COLUMNS), shuffle="files")
    options = {"batch_size": batch_size, "local_shuffle_buffer_size": _BUFFERED_BATCHES * batch_size}
    for batch in rows.iter_batches(batch_format="numpy", **options):
        yield len(batch["rating"])


if __name__ == "__main__":
    main(batches, start)
