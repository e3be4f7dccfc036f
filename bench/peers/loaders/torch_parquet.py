"""PyTorch's DataLoader over Parquet: workers read row groups in random order and shuffle a buffer of them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from rate import COLUMNS, files, main, read_groups
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

_BUFFERED_GROUPS = 8


class Rows(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, directory: Path, batch_size: int) -> None:
        self._paths, self._batch_size = files(directory), batch_size

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        assert worker is not None
        rng = np.random.default_rng(worker.id)
        opened = map(pq.ParquetFile, self._paths)
        groups = [(file, group) for file in opened for group in range(file.num_row_groups)]
        own = np.random.default_rng(0).permutation(len(groups))[worker.id :: worker.num_workers]
        for begin in range(0, len(own), _BUFFERED_GROUPS):
            some_groups = [groups[place] for place in own[begin : begin + _BUFFERED_GROUPS]]
            columns = read_groups(some_groups, use_threads=False)
            order = rng.permutation(len(columns[COLUMNS[0]]))
            for first in range(0, len(order), self._batch_size):
                some = order[first : first + self._batch_size]
                yield {name: torch.from_numpy(values[some]) for name, values in columns.items()}


def batches(directory: Path, _: Path, batch_size: int) -> Iterator[int]:
    workers = torch.get_num_threads()
    for batch in DataLoader(Rows(directory, batch_size), batch_size=None, num_workers=workers, prefetch_factor=4):
        yield len(batch["rating"])


if __name__ == "__main__":
    main(batches)
