"""Scores raw rows with dictionaries and ONNX Runtime, as most teams serve a recommender without a framework for it.

The servers beside this file share it. It needs NumPy and ONNX Runtime only.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TABLES, ENCODINGS, MODEL = "tables.npz", "encodings.json", "model.onnx"
WORKFLOW, SAVED_MODEL = "workflow", "saved_model"
DIRECTORY = "RANKLINE_PEER_DIRECTORY"
"""Environment variable with the path of the directory that has all these files."""
_UNKNOWN, _MISSING = 0, 1  # rows of a table; the others are those of its keys, and padding in tables of lists


class Scorer:
    def __init__(self, directory: Path | None = None, num_threads: int = 1) -> None:
        import onnxruntime

        directory = directory or Path(os.environ[DIRECTORY])
        encodings = json.loads((directory / ENCODINGS).read_text())
        self._scales = {name: of for name, of in encodings.items() if "mean" in of}
        self._lists = {name for name, of in encodings.items() if of.get("list")}
        self._rows = {
            name: {None: _MISSING, **{key: 2 + n for n, key in enumerate(of["keys"])}}
            for name, of in encodings.items()
            if "keys" in of
        }
        self._tables: dict[str, list[tuple[str, NDArray[Any]]]] = {name: [] for name in self._rows}
        with np.load(directory / TABLES) as tables:
            for name in tables.files:
                column, _, tensor = name.partition("/")
                padding = [np.zeros_like(tables[name][:1])] if column in self._lists else []
                self._tables[column].append((tensor, np.concatenate([tables[name], *padding])))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        model = (directory / MODEL).read_bytes()
        self._run = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, NDArray[Any]]:
        """Return the model's inputs; None is a missing value."""
        inputs = {}
        for name, scale in self._scales.items():
            counts = np.array([value or 0 for value in columns[name]], np.float32)
            scaled = (np.log1p(np.maximum(counts, 0)) - scale["mean"]) / scale["std"]
            inputs[name] = scaled.astype(np.float32)[:, None]
        for name, rows in self._rows.items():
            if name in self._lists:
                inputs |= self._encoded_lists(name, columns[name])
                continue
            places = [rows.get(value, _UNKNOWN) for value in columns[name]]
            for tensor, table in self._tables[name]:
                inputs[tensor] = table[places]
        return inputs

    def _encoded_lists(self, name: str, lists: Sequence[Sequence[Any]]) -> dict[str, NDArray[Any]]:
        rows, lengths = self._rows[name], [len(one) for one in lists]
        padding = len(rows) + 1
        width = max(lengths)
        places = [[*(rows.get(value, _UNKNOWN) for value in one), *[padding] * (width - len(one))] for one in lists]
        inputs = {f"{tensor}__values": table[places, 0] for tensor, table in self._tables[name]}
        return inputs | {f"{tensor}__nnzs": np.array(lengths, np.int32)[:, None] for tensor, _ in self._tables[name]}

    def score(self, columns: Mapping[str, Sequence[Any]]) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = self._run(None, self.encode(columns))[0]
        return scores.reshape(-1)
