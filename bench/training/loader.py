"""loader: Rankline's loader against merlin-dataloader, the native TFRecord path, and decoding with Arrow alone.

All sides read the same rows from the page cache, in turns; metrics are medians over the repeats. The loaders return
shuffled tensors. A slow side is stopped after some seconds, with the rate reached so far.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from bench.harness.report import Report, Turn, median_ratio, medians, scratch_directory, take_turns
from bench.harness.synthetic_rows import write_rows
from rankline.training.data.loader.torch import TorchAsyncItr
from rankline.workflows.core.errors import DataError
from rankline.workflows.nvt.compat import quiet_nvtabular
from rankline.workflows.schema.feature_spec import FeatureSpec

if TYPE_CHECKING:  # TensorFlow is optional with --device
    from rankline.training.data.loader.tensorflow import KerasSequenceLoader
    from rankline.training.data.loader.tfrecord import TFRecordLoader

SIZES = (1_000_000, 10_000_000, 50_000_000)  # rows; all sides read the second size
BATCH_SIZE = 32_768
BYTES_PER_ROW = 48  # as arrays


def run(
    repeats: int,
    *,
    device: str | None = None,
    sizes: tuple[int, int, int] = SIZES,
    max_turn_s: float = 8.0,
) -> Report:
    _, usual, _ = sizes
    if device is not None:
        from bench.training import loader_device

        return loader_device.run(repeats, device, num_rows=usual, batch_size=BATCH_SIZE, max_turn_s=max_turn_s)
    from bench.peers.native import notebook_dataset
    from rankline.training.data.loader.tfrecord import write_tfrecords

    buffer_bytes = usual * BYTES_PER_ROW // 10
    with scratch_directory() as directory:
        specs = {size: write_rows(directory / str(size), size) for size in sizes}
        paths = {
            size: [directory / str(size) / file for file in spec.source("train").files] for size, spec in specs.items()
        }
        files, spec = paths[usual], specs[usual]
        records = write_tfrecords(files, spec, directory / "tfrecord")
        rate = partial(_rate, max_turn_s=max_turn_s)
        sides: dict[str, Turn] = {
            "arrow decode": lambda: _decoding_rate(files, spec),
            "rankline": lambda: rate(_keras(files, spec)),
            **{
                _of_size(size): partial(_steady_rate, _keras(paths[size], spec), max(1, usual // size))
                for size in sizes
                if size != usual
            },
            "rankline, torch": lambda: rate(_torch(files, spec)),
            "merlin-dataloader": lambda: rate(_merlin(files)),
            "TFRecord, notebook": lambda: rate(notebook_dataset(records, spec, BATCH_SIZE)),
            "TFRecord, tuned": lambda: rate(_tfrecord(records, spec)),
        }
        rates = take_turns(sides, repeats)
        results = medians(rates, "rows_per_s")
        first = [_first_batch_s(files, spec) for _ in range(repeats)]
        peaks = [_peak_memory(files[0].parent, usual, buffer_bytes) for _ in range(repeats)]
    by_size = [1.0, *(median_ratio(rates, _of_size(size), "rankline") for size in sizes if size != usual)]
    results["rankline"] |= {"first_batch_s": statistics.median(first), "peak_memory_bytes": statistics.median(peaks)}
    ratios = {
        "vs_merlin": median_ratio(rates, "rankline", "merlin-dataloader"),
        "vs_tfrecord": median_ratio(rates, "rankline", "TFRecord, notebook"),
        "vs_tfrecord_tuned": median_ratio(rates, "rankline", "TFRecord, tuned"),
        "vs_arrow_decode": median_ratio(rates, "rankline", "arrow decode"),
        "peak_memory_over_buffer": statistics.median(peaks) / buffer_bytes,
        "first_batch_s": statistics.median(first),
        "scale_spread": (max(by_size) - min(by_size)) / max(by_size),
    }
    return Report(name="loader", results=results, ratios=ratios)


def _categorical(spec: FeatureSpec) -> list[str]:
    return [feature.name for feature in spec.categorical]


def _keras(paths: Sequence[Path], spec: FeatureSpec, **options: Any) -> "KerasSequenceLoader":
    from rankline.training.data.loader.tensorflow import KerasSequenceLoader

    return KerasSequenceLoader(paths, BATCH_SIZE, [spec.label.name], cat_names=_categorical(spec), **options)


def _torch(paths: Sequence[Path], spec: FeatureSpec) -> TorchAsyncItr:
    return TorchAsyncItr(paths, cats=_categorical(spec), labels=[spec.label.name], batch_size=BATCH_SIZE)


def _tfrecord(paths: Sequence[Path], spec: FeatureSpec) -> "TFRecordLoader":
    from rankline.training.data.loader.tfrecord import TFRecordLoader

    return TFRecordLoader(paths, spec, BATCH_SIZE, num_rows=spec.source("train").num_rows, shuffle=True, seed=0)


def _merlin(paths: Sequence[Path]) -> Any:
    with quiet_nvtabular():
        from merlin.io import Dataset
        from merlin.loader.tensorflow import Loader

        # One row group at a time: by default, the first batch waits for a whole file.
        rows = Dataset([str(path) for path in paths], engine="parquet", row_groups_per_part=1)
        return Loader(rows, batch_size=BATCH_SIZE, shuffle=True)


def _rate(loader: Iterable[Any], max_turn_s: float) -> float:
    done, begin = 0, time.perf_counter()
    with quiet_nvtabular():
        for inputs, _ in loader:
            done += int(inputs["userId"].shape[0])
            if time.perf_counter() - begin > max_turn_s:
                break
    return done / (time.perf_counter() - begin)


def _steady_rate(loader: "KerasSequenceLoader", num_epochs: int) -> float:
    begin = time.perf_counter()
    done = sum(int(label.shape[0]) for _ in range(num_epochs) for _, label in loader)
    return done / (time.perf_counter() - begin)


def _decoding_rate(paths: Sequence[Path], spec: FeatureSpec) -> float:
    """Return the rows per second of Arrow decoding the same columns, with all its threads."""
    begin = time.perf_counter()
    columns = [feature.name for feature in spec.features]
    done = sum(int(pq.read_table(path, columns=columns).num_rows) for path in paths)
    return done / (time.perf_counter() - begin)


def _first_batch_s(paths: Sequence[Path], spec: FeatureSpec) -> float:
    begin = time.perf_counter()
    batches = iter(_keras(paths, spec))
    next(batches)
    return time.perf_counter() - begin


def _of_size(size: int) -> str:
    return f"rankline, {size:,} rows"


_PEAK_PROGRAM = """
import sys, threading
import psutil
from rankline.training.data.loader.tensorflow import KerasSequenceLoader
directory, batch_size, buffer_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
process, peak, done = psutil.Process(), 0, threading.Event()
def loader(buffer_size):
    return KerasSequenceLoader(directory, batch_size, ["rating"], cat_names=["userId", "movieId", "genres"],
                               buffer_size=buffer_size)
next(iter(loader("1MB")))  # what is compiled and allocated once does not count
idle = process.memory_info().rss
def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, process.memory_info().rss)
watcher = threading.Thread(target=watch)
watcher.start()
num_rows = sum(int(label.shape[0]) for _, label in loader(buffer_bytes))
done.set()
watcher.join()
print(num_rows, peak - idle)
"""


def _peak_memory(directory: Path, num_rows: int, buffer_bytes: int) -> int:
    program = [sys.executable, "-c", _PEAK_PROGRAM, str(directory), str(BATCH_SIZE), str(buffer_bytes)]
    output = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    read, peak = map(int, output.splitlines()[-1].split())
    if read != num_rows:
        raise DataError(f"the loader gave {read} rows of {num_rows}: nothing to compare.")
    return peak
