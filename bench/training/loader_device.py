"""loader --device: tensors on a device, with Rankline's loader, a plain PyTorch `DataLoader`, and copies alone.

The plain loader has all columns in memory as tensors, and samples, collates and pins rows with PyTorch's defaults, as
most people use it; Rankline reads files. The floor copies one batch repeatedly, from page-locked memory for a GPU. All
sides have the same scalar columns.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, TensorDataset

from bench.harness.report import Report, median_ratio, medians, scratch_directory, take_turns
from bench.harness.synthetic_rows import write_rows
from rankline.training.data.loader.torch import DLDataLoader, TorchAsyncItr, existing_device


def run(repeats: int, device: str, *, num_rows: int, batch_size: int, max_turn_s: float) -> Report:
    target = existing_device(device)
    with scratch_directory() as directory:
        spec = write_rows(directory, num_rows)
        files = [directory / name for name in spec.source("train").files]
        names = [feature.name for feature in spec.categorical if not feature.is_list]
        columns = _columns(files, [*names, spec.label.name])
        batch = [column[:batch_size] for column in columns]
        if target.type == "cuda":
            batch = [column.pin_memory() for column in batch]
        sides: dict[str, Callable[[], Iterable[Any]]] = {
            "rankline": partial(_ours, files, names, spec.label.name, batch_size, target),
            "DataLoader": partial(_plain, columns, batch_size, target),
            "copies alone": partial(_copies, batch, num_rows // batch_size, target),
        }
        rates = take_turns({name: partial(_rate, make, target, max_turn_s) for name, make in sides.items()}, repeats)
    ratios = {
        "vs_dataloader": median_ratio(rates, "rankline", "DataLoader"),
        "vs_copies_alone": median_ratio(rates, "rankline", "copies alone"),
    }
    return Report(name="loader", results=medians(rates, "rows_per_s"), ratios=ratios)


def _columns(files: Sequence[Path], names: Sequence[str]) -> list[torch.Tensor]:
    table = pq.read_table(list(files), columns=list(names))
    return [torch.from_numpy(np.array(table[name])) for name in names]


def _ours(files: Sequence[Path], names: list[str], label: str, batch_size: int, device: torch.device) -> Iterable[Any]:
    rows = TorchAsyncItr(files, cats=names, labels=[label], batch_size=batch_size)
    return DLDataLoader(rows, pin_memory=True, device=device)


def _plain(columns: list[torch.Tensor], batch_size: int, device: torch.device) -> Iterator[Any]:
    rows = TensorDataset(*columns)
    workers = len(os.sched_getaffinity(0))  # PyTorch warns about more, and fewer leave CPUs idle
    is_gpu = device.type == "cuda"
    for batch in DataLoader(rows, batch_size, shuffle=True, num_workers=workers, pin_memory=is_gpu):
        yield tuple(column.to(device, non_blocking=True) for column in batch)


def _copies(columns: list[torch.Tensor], num_batches: int, device: torch.device) -> Iterator[Any]:
    for _ in range(num_batches):
        yield tuple(column.to(device, non_blocking=True, copy=True) for column in columns)


def _rate(make: Callable[[], Iterable[Any]], device: torch.device, max_turn_s: float) -> float:
    """Return the rows per second of an epoch, stopped early after `max_turn_s`, including transfer to the device."""
    done, begin = 0, time.perf_counter()
    for batch in make():
        done += len(batch[-1])  # the labels
        if time.perf_counter() - begin > max_turn_s:
            break
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return done / (time.perf_counter() - begin)
