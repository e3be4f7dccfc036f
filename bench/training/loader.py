"""loader: Rankline's loader against merlin-dataloader, the native TFRecord path, and decoding with Arrow alone.

All sides read the same rows from the page cache, in turns; metrics are medians over the repeats. The loaders return
shuffled tensors. A slow side is stopped after some seconds, with the rate reached so far. A Dataset in memory has the
rows of the smallest files. Keras 3 trains a model of two weights on one id column, from the loader and from its
`tf.data.Dataset`.

With `--device`: tensors on a device, with Rankline's loader, a plain PyTorch `DataLoader`, and copies alone. The plain
loader has all columns in memory as tensors, and samples, collates and pins rows with PyTorch's defaults, as most people
use it; Rankline reads files. The floor copies one batch repeatedly, from page-locked memory for a GPU. All sides have
the same scalar columns.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, TensorDataset

from bench.harness.report import Report, Turn, median_ratio, medians, scratch_directory, take_turns
from bench.harness.synthetic_rows import write_rows
from rankline.training.data.loader.torch import DLDataLoader, TorchAsyncItr, existing_device
from rankline.workflows.core.errors import DataError
from rankline.workflows.core.machine import num_cores
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.schema.feature_spec import FeatureSpec

if TYPE_CHECKING:  # TensorFlow is optional with --device
    from rankline.training.data.loader.tensorflow import KerasSequenceLoader
    from rankline.training.data.loader.tfrecord import TFRecordLoader

SIZES = (1_000_000, 10_000_000, 50_000_000)  # rows; all sides read the second size
BATCH_SIZE = 32_768
BYTES_PER_ROW = 48  # as arrays
_KERAS_EPOCHS = 4  # an epoch takes one second, within which the figure is noise
IN_MEMORY = "rankline, Dataset in memory"


def run(
    repeats: int,
    *,
    device: str | None = None,
    sizes: tuple[int, int, int] = SIZES,
    max_turn_s: float = 8.0,
) -> Report:
    _, usual, _ = sizes
    if device is not None:
        return _run_on_device(repeats, device, num_rows=usual, max_turn_s=max_turn_s)
    from bench.peers.native import notebook_dataset
    from rankline.training.data.loader.tfrecord import write_tfrecords

    small = sizes[0]
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
            IN_MEMORY: partial(_steady_rate, _keras(_in_memory(paths[small]), specs[small]), max(1, usual // small)),
            "keras 3, fit(loader)": partial(_keras3_rate, files, spec, lambda loader: loader),
            "keras 3, fit(dataset)": partial(_keras3_rate, files, spec, lambda loader: loader.as_dataset()),
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
        "memory_over_parquet": median_ratio(rates, IN_MEMORY, _of_size(small)),
        "keras3_fit_over_dataset": median_ratio(rates, "keras 3, fit(loader)", "keras 3, fit(dataset)"),
        "peak_memory_over_buffer": statistics.median(peaks) / buffer_bytes,
        "first_batch_s": statistics.median(first),
        "scale_spread": (max(by_size) - min(by_size)) / max(by_size),
    }
    return Report(name="loader", results=results, ratios=ratios)


def _categorical(spec: FeatureSpec) -> list[str]:
    return [feature.name for feature in spec.categorical]


def _keras(data: Any, spec: FeatureSpec) -> "KerasSequenceLoader":
    from rankline.training.data.loader.tensorflow import KerasSequenceLoader

    return KerasSequenceLoader(data, BATCH_SIZE, [spec.label.name], cat_names=_categorical(spec), cont_names=None)


def _torch(paths: Sequence[Path], spec: FeatureSpec) -> TorchAsyncItr:
    return TorchAsyncItr(paths, _categorical(spec), None, [spec.label.name], BATCH_SIZE, shuffle=True)


def _in_memory(paths: Sequence[Path]) -> Any:
    with quiet_nvtabular():
        return nvt.Dataset(pq.read_table(list(paths)).to_pandas())


def _keras3_rate(paths: Sequence[Path], spec: FeatureSpec, data_of: Callable[["KerasSequenceLoader"], Any]) -> float:
    """Return the rows per second of `fit`, after some steps that compile the model."""
    import keras

    from rankline.training.data.loader.tensorflow import KerasSequenceLoader

    name = _categorical(spec)[0]
    loader = KerasSequenceLoader(paths, BATCH_SIZE, [spec.label.name], cat_names=[name], cont_names=None)
    ids = keras.Input((1,), name=name, dtype="int64")
    model = keras.Model({name: ids}, keras.layers.Dense(1)(keras.ops.cast(ids, "float32")))
    model.compile("sgd", "mse")
    data = data_of(loader)
    model.fit(data, steps_per_epoch=2, shuffle=False, verbose=0)  # Keras warns of shuffling a Dataset
    begin = time.perf_counter()
    model.fit(data, epochs=_KERAS_EPOCHS, shuffle=False, verbose=0)
    return _KERAS_EPOCHS * loader.num_rows / (time.perf_counter() - begin)


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
        raise DataError(f"the loader returned {read} of {num_rows} rows, so there is nothing to compare.")
    return peak


def _run_on_device(repeats: int, device: str, *, num_rows: int, max_turn_s: float) -> Report:
    target = existing_device(device)
    with scratch_directory() as directory:
        spec = write_rows(directory, num_rows)
        files = [directory / name for name in spec.source("train").files]
        names = [feature.name for feature in spec.categorical if not feature.is_list]
        columns = _columns(files, [*names, spec.label.name])
        batch = [column[:BATCH_SIZE] for column in columns]
        if target.type == "cuda":
            batch = [column.pin_memory() for column in batch]
        sides: dict[str, Callable[[], Iterable[Any]]] = {
            "rankline": partial(_ours, files, names, spec.label.name, target),
            "DataLoader": partial(_plain, columns, target),
            "copies alone": partial(_copies, batch, num_rows // BATCH_SIZE, target),
        }
        rates = take_turns(
            {name: partial(_device_rate, make, target, max_turn_s) for name, make in sides.items()}, repeats
        )
    ratios = {
        "vs_dataloader": median_ratio(rates, "rankline", "DataLoader"),
        "vs_copies_alone": median_ratio(rates, "rankline", "copies alone"),
    }
    return Report(name="loader", results=medians(rates, "rows_per_s"), ratios=ratios)


def _columns(files: Sequence[Path], names: Sequence[str]) -> list[torch.Tensor]:
    table = pq.read_table(list(files), columns=list(names))
    return [torch.from_numpy(np.array(table[name])) for name in names]


def _ours(files: Sequence[Path], names: list[str], label: str, device: torch.device) -> Iterable[Any]:
    rows = TorchAsyncItr(files, names, None, [label], BATCH_SIZE, shuffle=True)
    return DLDataLoader(rows, pin_memory=True, device=device)


def _plain(columns: list[torch.Tensor], device: torch.device) -> Iterator[Any]:
    rows = TensorDataset(*columns)
    workers = num_cores()  # PyTorch warns about more, and fewer leave CPUs idle
    is_gpu = device.type == "cuda"
    for batch in DataLoader(rows, BATCH_SIZE, shuffle=True, num_workers=workers, pin_memory=is_gpu):
        yield tuple(column.to(device, non_blocking=True) for column in batch)


def _copies(columns: list[torch.Tensor], num_batches: int, device: torch.device) -> Iterator[Any]:
    for _ in range(num_batches):
        yield tuple(column.to(device, non_blocking=True, copy=True) for column in columns)


def _device_rate(make: Callable[[], Iterable[Any]], device: torch.device, max_turn_s: float) -> float:
    """Return the rows per second of an epoch, stopped early after `max_turn_s`, including transfer to the device."""
    done, begin = 0, time.perf_counter()
    for batch in make():
        done += len(batch[-1])  # the labels
        if time.perf_counter() - begin > max_turn_s:
            break
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return done / (time.perf_counter() - begin)
