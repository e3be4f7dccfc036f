"""loader: our loader against merlin-dataloader, the native TFRecord path, and what Arrow alone needs to decode.

All sides read the same rows from the page cache, in turns, several times; figures are medians over the repeats. The
loaders hand out tensors, shuffled. A side that would take long is stopped after some seconds, with the rate it had.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq

from bench.report import Rates, Report, Turn, median_ratio, take_turns
from bench.rows import write_rows
from training.loader.tensorflow import KerasSequenceLoader
from training.loader.tfrecord import TFRecordLoader, notebook_dataset, write_tfrecords
from training.loader.torch import TorchAsyncItr
from workflows.feature_spec import FeatureSpec
from workflows.upstream import quiet_nvtabular

NUM_ROWS = 10_000_000
SIZES = (1_000_000, NUM_ROWS, 50_000_000)
BATCH_SIZE = 32_768
BUFFER_BYTES = 48_000_000  # a tenth of what the rows take as arrays
_MAX_TURN_S = 8.0


def run(repeats: int) -> Report:
    """Write the rows, measure each side `repeats` times in turns, and memory in processes of its own."""
    with TemporaryDirectory(prefix="rankline-bench-") as name:
        directory = Path(name)
        specs = {size: write_rows(directory / str(size), size) for size in SIZES}
        paths = {
            size: [directory / str(size) / file for file in spec.source("train").files] for size, spec in specs.items()
        }
        files, spec = paths[NUM_ROWS], specs[NUM_ROWS]
        records = write_tfrecords(files, spec, directory / "tfrecord")
        sides: dict[str, Turn] = {
            "rankline": lambda: _rate(_keras(files, spec)),
            "rankline, torch": lambda: _rate(_torch(files, spec)),
            "arrow decode": lambda: _decoding_rate(files, spec),
            "merlin-dataloader": lambda: _rate(_merlin(files)),
            "TFRecord, notebook": lambda: _rate(notebook_dataset(records, spec, BATCH_SIZE)),
            "TFRecord, tuned": lambda: _rate(_tfrecord(records, spec)),
        }
        for size in SIZES:
            if size != NUM_ROWS:
                sides[_of_size(size)] = partial(_steady_rate, _keras(paths[size], spec), size)
        rates = take_turns(sides, repeats)
        results = {side: {"rows_per_s": statistics.median(values)} for side, values in rates.items()}
        first = [_first_batch_s(files, spec) for _ in range(repeats)]
        peaks = [_peak_memory(files[0].parent) for _ in range(repeats)]
        results["rankline"] |= {
            "first_batch_s": statistics.median(first),
            "peak_memory_bytes": statistics.median(peaks),
        }
    return Report(name="loader", results=results, ratios=_ratios(rates, results))


def _categorical(spec: FeatureSpec) -> list[str]:
    return [feature.name for feature in spec.categorical]


def _keras(paths: Sequence[Path], spec: FeatureSpec, **options: Any) -> KerasSequenceLoader:
    return KerasSequenceLoader(paths, BATCH_SIZE, [spec.label.name], cat_names=_categorical(spec), **options)


def _torch(paths: Sequence[Path], spec: FeatureSpec) -> TorchAsyncItr:
    return TorchAsyncItr(paths, cats=_categorical(spec), labels=[spec.label.name], batch_size=BATCH_SIZE)


def _tfrecord(paths: Sequence[Path], spec: FeatureSpec) -> TFRecordLoader:
    return TFRecordLoader(paths, spec, BATCH_SIZE, num_rows=spec.source("train").num_rows, shuffle=True, seed=0)


def _merlin(paths: Sequence[Path]) -> Any:
    with quiet_nvtabular():
        from merlin.io import Dataset
        from merlin.loader.tensorflow import Loader

        # One row group at a time; with its default the first batch waits for a whole file.
        rows = Dataset([str(path) for path in paths], engine="parquet", row_groups_per_part=1)
        return Loader(rows, batch_size=BATCH_SIZE, shuffle=True)


def _rate(loader: Iterable[Any]) -> float:
    """Rows per second of one epoch of a loader of pairs of inputs and labels, or of as much as fits into a turn."""
    done, begin = 0, time.perf_counter()
    with quiet_nvtabular():
        for inputs, _ in loader:
            done += int(inputs["userId"].shape[0])
            if time.perf_counter() - begin > _MAX_TURN_S:
                break
    return done / (time.perf_counter() - begin)


def _steady_rate(loader: KerasSequenceLoader, size: int) -> float:
    """The same over as many epochs, one after another, as have the usual number of rows."""
    epochs, begin = max(1, NUM_ROWS // size), time.perf_counter()
    done = sum(int(label.shape[0]) for _ in range(epochs) for _, label in loader)
    return done / (time.perf_counter() - begin)


def _decoding_rate(paths: Sequence[Path], spec: FeatureSpec) -> float:
    """Arrow decoding the same columns and nothing else, with all its threads."""
    begin = time.perf_counter()
    columns = [feature.name for feature in spec.features]
    done = sum(int(pq.read_table(path, columns=columns).num_rows) for path in paths)
    return done / (time.perf_counter() - begin)


def _first_batch_s(paths: Sequence[Path], spec: FeatureSpec) -> float:
    """From the files' names to the first tensors."""
    begin = time.perf_counter()
    batches = iter(_keras(paths, spec))
    next(batches)
    return time.perf_counter() - begin


def _of_size(size: int) -> str:
    return "rankline" if size == NUM_ROWS else f"rankline, {size // 10**6}M rows"


_PEAK_PROGRAM = """
import json, sys, threading
import psutil
from bench.loader import BATCH_SIZE, BUFFER_BYTES
from training.loader.tensorflow import KerasSequenceLoader
process, peak, done = psutil.Process(), 0, threading.Event()
def loader(buffer_size):
    return KerasSequenceLoader(sys.argv[1], BATCH_SIZE, ["rating"], cat_names=["userId", "movieId", "genres"],
                               buffer_size=buffer_size)
next(iter(loader("1MB")))  # what is compiled and allocated once does not count
idle = process.memory_info().rss
def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, process.memory_info().rss)
watcher = threading.Thread(target=watch)
watcher.start()
num_rows = sum(int(label.shape[0]) for _, label in loader(BUFFER_BYTES))
done.set()
watcher.join()
print(json.dumps({"num_rows": num_rows, "bytes": peak - idle}))
"""


def _peak_memory(directory: Path) -> float:
    """Memory of a process that reads one epoch, above what it had before, at its highest."""
    program = [sys.executable, "-c", _PEAK_PROGRAM, str(directory / "train")]
    output = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    found = json.loads(output.splitlines()[-1])
    if found["num_rows"] != NUM_ROWS:
        raise RuntimeError(f"the loader gave {found['num_rows']} rows of {NUM_ROWS}")
    return float(found["bytes"])


def _ratios(rates: Rates, results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    by_size = [results[_of_size(size)]["rows_per_s"] for size in SIZES]
    return {
        "vs_merlin": median_ratio(rates, "rankline", "merlin-dataloader"),
        "vs_tfrecord": median_ratio(rates, "rankline", "TFRecord, notebook"),
        "vs_tfrecord_tuned": median_ratio(rates, "rankline", "TFRecord, tuned"),
        "vs_arrow_decode": median_ratio(rates, "rankline", "arrow decode"),
        "peak_memory_over_buffer": results["rankline"]["peak_memory_bytes"] / BUFFER_BYTES,
        "first_batch_s": results["rankline"]["first_batch_s"],
        "scale_spread": (max(by_size) - min(by_size)) / max(by_size),
    }
