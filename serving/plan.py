"""A compiled workflow: what a request needs of NVTabular, as lookup tables and a few NumPy calls.

Every output column of a fitted categorical graph is a function of one key: look the key up in an index of known keys,
get a row number, take that row of a table. The first `num_unknown` rows are for keys that the index does not know.
Joins, list encodings and all else that happened on the way are already in the table, folded in by `serving.compile`.

On disk a plan is `plan.json` and Arrow IPC files, memory-mapped when loaded, so that instances share one copy. It holds
no code, and this module needs neither NVTabular, pandas nor TensorFlow.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from workflows.errors import ArtifactError, RequestError
from workflows.hashing import bucket_of

PLAN_FILE = "plan.json"
FORMAT_VERSION = 1
# A dense index may be this many times larger than its keys before binary search takes over.
_DENSE_SLOTS_PER_KEY = 16
_DENSE_SLOTS_FREE = 1 << 20  # 8 MiB of slots, whatever the number of keys


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One tensor that goes in or comes out.

    Attributes:
        name: column name.
        dtype: NumPy dtype name of a single value.
        width: None for one value per row; else the columns of the zero-padded list.
    """

    name: str
    dtype: str
    width: int | None = None


@dataclass(frozen=True)
class Padded:
    """A list column with the batch first.

    Attributes:
        values: [num_rows, width], zeros after the end of each list.
        lengths: int32 [num_rows].
    """

    values: NDArray[Any]
    lengths: NDArray[np.int32]

    def ragged(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The same lists as flat values and offsets (int64 [num_rows + 1])."""
        inside = np.arange(self.values.shape[1]) < self.lengths[:, None]
        return self.values[inside], np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))


@dataclass(frozen=True, kw_only=True)
class KeyIndex:
    """Finds the table row of an int64 key.

    Attributes:
        input: raw column that holds the keys.
        num_unknown: rows set aside for unknown keys, which are dealt out by their hash; at least 1.
        keys: sorted known keys, or None when the index is dense.
        first: smallest known key of a dense index.
        rows: row of each sorted key, or of each slot `key - first`; a dense index has one more slot, always 0. A slot
            that is 0 is unknown, since known rows start at `num_unknown`.
    """

    input: str
    num_unknown: int
    keys: NDArray[np.int64] | None
    first: int
    rows: NDArray[np.int64]

    @classmethod
    def build(cls, input_name: str, keys: NDArray[np.int64], num_unknown: int = 1) -> "KeyIndex":
        """Index distinct keys; the i-th key gets row `num_unknown + i`."""
        keys = np.ascontiguousarray(keys, dtype=np.int64)
        rows = np.arange(num_unknown, num_unknown + len(keys), dtype=np.int64)
        first, last = (int(keys.min()), int(keys.max())) if len(keys) else (0, -1)
        num_slots = last - first + 1
        if num_slots <= len(keys) * _DENSE_SLOTS_PER_KEY + _DENSE_SLOTS_FREE:
            slots = np.zeros(num_slots + 1, dtype=np.int64)
            slots[keys - first] = rows
            return cls(input=input_name, num_unknown=num_unknown, keys=None, first=first, rows=slots)
        order = np.argsort(keys)
        return cls(input=input_name, num_unknown=num_unknown, keys=keys[order], first=0, rows=rows[order])

    def rows_of(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Table row of each key: integers [num_rows] → int64 [num_rows]."""
        keys = keys.astype(np.int64, copy=False)
        if self.keys is None:
            # Seen as unsigned, the wrapped difference of a key outside [first, last] is always past the last slot.
            slots = (keys - np.int64(self.first)).view(np.uint64)
            rows = self.rows.take(np.minimum(slots, np.uint64(len(self.rows) - 1)).view(np.int64))
        else:
            slot = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            rows = np.where(self.keys.take(slot) == keys, self.rows.take(slot), 0)
        if self.num_unknown > 1:
            unknown = rows == 0
            rows[unknown] = bucket_of(keys[unknown], self.num_unknown)
        return rows


@dataclass(frozen=True, kw_only=True)
class Column:
    """One output column.

    Attributes:
        name: column name.
        index: position in `TransformPlan.indexes` of the index that finds the row.
        values: [num_table_rows] for single values, [num_table_rows, width] for padded lists.
        lengths: int32 [num_table_rows] for lists, else None.
    """

    name: str
    index: int
    values: NDArray[Any]
    lengths: NDArray[np.int32] | None = None

    @property
    def spec(self) -> TensorSpec:
        """Name, dtype and width."""
        width = None if self.lengths is None else int(self.values.shape[1])
        return TensorSpec(name=self.name, dtype=self.values.dtype.name, width=width)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any] | Padded:
        """The values at some table rows."""
        values = self.values.take(rows, axis=0)
        return values if self.lengths is None else Padded(values, self.lengths.take(rows))


@dataclass(frozen=True, kw_only=True)
class TransformPlan:
    """The transform of one serving graph.

    Attributes:
        inputs: raw columns of a request.
        indexes: the key indexes.
        columns: the output columns, in the workflow's order.
    """

    inputs: tuple[TensorSpec, ...]
    indexes: tuple[KeyIndex, ...]
    columns: tuple[Column, ...]

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any] | Padded]:
        """Transform raw rows.

        Args:
            inputs: column → array of [num_rows], of the dtype in `inputs`.

        Returns:
            Column → array of [num_rows], or `Padded` for lists.

        Raises:
            RequestError: an input is missing, has another dtype, or the inputs differ in length.
        """
        self._check(inputs)
        rows = [index.rows_of(inputs[index.input]) for index in self.indexes]
        return {column.name: column.take(rows[column.index]) for column in self.columns}

    def _check(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        for spec in self.inputs:
            if spec.name not in inputs:
                raise RequestError(f"input {spec.name!r} is missing. Expected: {[s.name for s in self.inputs]}.")
            if inputs[spec.name].dtype != spec.dtype:
                raise RequestError(f"input {spec.name!r} is {inputs[spec.name].dtype}, expected {spec.dtype}.")
        if len({len(inputs[spec.name]) for spec in self.inputs}) > 1:
            lengths = {spec.name: len(inputs[spec.name]) for spec in self.inputs}
            raise RequestError(f"inputs have different numbers of rows: {lengths}. Give the same number for each.")

    def save(self, directory: Path) -> None:
        """Write the plan into a new directory."""
        directory.mkdir(parents=True)
        indexes, columns = [], []
        for number, index in enumerate(self.indexes):
            arrays: dict[str, NDArray[Any]] = {"rows": index.rows} | (
                {} if index.keys is None else {"keys": index.keys}
            )
            files = _write_all(directory, f"index-{number}", arrays)
            indexes.append(
                {"input": index.input, "num_unknown": index.num_unknown, "first": index.first, "files": files}
            )
        for number, column in enumerate(self.columns):
            arrays = {"values": column.values.reshape(-1)}
            arrays |= {} if column.lengths is None else {"lengths": column.lengths}
            files = _write_all(directory, f"column-{number}", arrays)
            columns.append({"name": column.name, "index": column.index, "width": column.spec.width, "files": files})
        document = {
            "format_version": FORMAT_VERSION,
            "inputs": [{"name": spec.name, "dtype": spec.dtype} for spec in self.inputs],
            "indexes": indexes,
            "columns": columns,
        }
        (directory / PLAN_FILE).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> "TransformPlan":
        """Map a plan into memory.

        Raises:
            ArtifactError: missing or damaged.
        """
        path = directory / PLAN_FILE
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["format_version"] != FORMAT_VERSION:
                raise ArtifactError(
                    f"{path} has format version {document['format_version']}, expected {FORMAT_VERSION}. Export again."
                )
            return cls(
                inputs=tuple(TensorSpec(**entry) for entry in document["inputs"]),
                indexes=tuple(_load_index(directory, entry) for entry in document["indexes"]),
                columns=tuple(_load_column(directory, entry) for entry in document["columns"]),
            )
        except (OSError, ValueError, KeyError, TypeError, IndexError, pa.ArrowException) as error:
            raise ArtifactError(f"{path} cannot be read ({type(error).__name__}: {error}). Export again.") from None


def _load_index(directory: Path, entry: Mapping[str, Any]) -> KeyIndex:
    arrays = _read_all(directory, entry["files"])
    return KeyIndex(
        input=entry["input"],
        num_unknown=entry["num_unknown"],
        first=entry["first"],
        rows=arrays["rows"],
        keys=arrays.get("keys"),
    )


def _load_column(directory: Path, entry: Mapping[str, Any]) -> Column:
    arrays = _read_all(directory, entry["files"])
    values = arrays["values"] if entry["width"] is None else arrays["values"].reshape(-1, entry["width"])
    return Column(name=entry["name"], index=entry["index"], values=values, lengths=arrays.get("lengths"))


def _write_all(directory: Path, stem: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """Write each array as an Arrow file of its own; returns role → file name."""
    files = {role: f"{stem}-{role}.arrow" for role in arrays}
    for role, array in arrays.items():
        batch = pa.record_batch([pa.array(array)], names=[role])
        with pa.OSFile(str(directory / files[role]), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
    return files


def _read_all(directory: Path, files: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    return {role: _read(directory / name) for role, name in files.items()}


def _read(path: Path) -> NDArray[Any]:
    with pa.memory_map(str(path)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
    array: NDArray[Any] = batch.column(0).to_numpy(zero_copy_only=True)
    return array
