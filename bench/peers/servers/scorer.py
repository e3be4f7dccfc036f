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

TABLES, KEYS, MODEL = "tables.npz", "keys.json", "model.onnx"
WORKFLOW, SAVED_MODEL = "workflow", "saved_model"
DIRECTORY = "RANKLINE_PEER_DIRECTORY"
"""Environment variable with the path of the directory that has all these files."""
_UNKNOWN, _MISSING = 0, 1  # rows of a table; the others are those of its keys


class Scorer:
    def __init__(self, directory: Path | None = None, num_threads: int = 1) -> None:
        import onnxruntime

        directory = directory or Path(os.environ[DIRECTORY])
        keys = json.loads((directory / KEYS).read_text())
        self._rows = {name: {None: _MISSING, **{key: 2 + n for n, key in enumerate(of)}} for name, of in keys.items()}
        self._tables: dict[str, list[tuple[str, NDArray[Any]]]] = {name: [] for name in keys}
        with np.load(directory / TABLES) as tables:
            for name in tables.files:
                column, _, tensor = name.partition("/")
                self._tables[column].append((tensor, tables[name]))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        model = (directory / MODEL).read_bytes()
        self._run = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, NDArray[Any]]:
        """Return the model's inputs; None is a missing value."""
        inputs = {}
        for name, rows in self._rows.items():
            places = [rows.get(value, _UNKNOWN) for value in columns[name]]
            for tensor, table in self._tables[name]:
                inputs[tensor] = table[places]
        return inputs

    def score(self, columns: Mapping[str, Sequence[Any]]) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = self._run(None, self.encode(columns))[0]
        return scores.reshape(-1)
