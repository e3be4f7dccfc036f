"""Rankline's loader, in PyTorch."""

from collections.abc import Iterator
from pathlib import Path

from rate import COLUMNS, main

from rankline.training.data.loader.torch import TorchAsyncItr


def batches(directory: Path, _: Path, batch_size: int) -> Iterator[int]:
    *ids, label = COLUMNS
    for _inputs, labels in TorchAsyncItr(directory, ids, None, [label], batch_size, shuffle=True):
        yield int(labels.shape[0])


if __name__ == "__main__":
    main(batches)
