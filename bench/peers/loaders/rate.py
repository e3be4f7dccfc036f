"""Measures a loader: `python PEER.py DIRECTORY CACHE BATCH_SIZE MAX_S`, for the other files of this folder.

DIRECTORY contains Parquet files with the columns below, and CACHE is for files in the peer's own format, which the
first call writes. Prints the rows per second of shuffled batches. Imports nothing from Rankline.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

_WARMUP_BATCHES = 3
COLUMNS = ("userId", "movieId", "rating")


def main(
    batches: Callable[[Path, Path, int], Iterator[int]], convert: Callable[[Path, Path], object] | None = None
) -> None:
    """Measure `batches`, which yields the number of rows of each batch."""
    directory, cache, batch_size, max_s = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    if convert is not None:
        convert(directory, cache)
    for _ in islice(batches(directory, cache, batch_size), _WARMUP_BATCHES):  # imports, compilation, caches
        pass
    done, begin_s = 0, time.perf_counter()
    for num_rows in batches(directory, cache, batch_size):
        done += num_rows
        if time.perf_counter() - begin_s > max_s:
            break
    print(json.dumps(done / (time.perf_counter() - begin_s)))


def read_groups(groups: Sequence[tuple[Any, int]], *, use_threads: bool) -> dict[str, np.ndarray]:
    """Return the columns of row groups, given as (`pyarrow.parquet.ParquetFile`, number), one after the other."""
    tables = [file.read_row_group(number, columns=list(COLUMNS), use_threads=use_threads) for file, number in groups]
    return {name: np.concatenate([table[name].to_numpy() for table in tables]) for name in COLUMNS}


def files(directory: Path) -> list[str]:
    return sorted(map(str, directory.glob("*.parquet")))
