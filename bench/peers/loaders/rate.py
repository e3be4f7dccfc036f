"""Measures a loader: `python PEER.py DIRECTORY CACHE BATCH_SIZE MAX_S`, for the other files of this folder.

DIRECTORY contains Parquet files with the columns below, and CACHE is for files in the peer's own format, which the
first call writes. Prints the rows per second of a pass in shuffled batches, and the peak memory of the process and of
its largest worker. A pass of more than MAX_S is cut short; its rate is that from the first batch on, since the start
hardly matters in a whole one. Imports nothing from Rankline.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

_WARMUP_BATCHES = 3
_MIN_BATCHES = 3
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
    times: list[float] = [time.perf_counter()]
    rows = [0]
    for num_rows in batches(directory, cache, batch_size):
        times.append(time.perf_counter())
        rows.append(num_rows)
        if (is_cut := times[-1] - times[0] > max_s) and len(times) > _MIN_BATCHES:
            break
    first = 1 if is_cut else 0
    peak_kb = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    found = {"rows_per_s": sum(rows[first + 1 :]) / (times[-1] - times[first]), "peak_mb": peak_kb / 1e3}
    print(json.dumps(found))


def read_groups(groups: Sequence[tuple[Any, int]], *, use_threads: bool) -> dict[str, np.ndarray]:
    """Read row groups, each a `pyarrow.parquet.ParquetFile` and a number, and concatenate their columns."""
    tables = [file.read_row_group(number, columns=list(COLUMNS), use_threads=use_threads) for file, number in groups]
    return {name: np.concatenate([table[name].to_numpy() for table in tables]) for name in COLUMNS}


def files(directory: Path) -> list[str]:
    return sorted(map(str, directory.glob("*.parquet")))
