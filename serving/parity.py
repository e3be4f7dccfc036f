"""No export without parity: what is served equals what was trained on.

Two comparisons on held-out rows and on rows made to be awkward: the compiled plan against NVTabular (ids, lengths and
values identical), and the score through plan and padded signature against the score through NVTabular and the ragged
signature (within `SCORE_TOLERANCE`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import tensorflow as tf
from numpy.typing import NDArray

from serving.plan import Padded, TransformPlan
from workflows.errors import ArtifactError, ParityError
from workflows.tensor_names import NNZS, OFFSETS, PADDED_SIGNATURE, RAGGED_SIGNATURE, SCORE, VALUES
from workflows.upstream import nvt, quiet_nvtabular

SCORE_TOLERANCE = 1e-5
"""Largest difference of two scores in [0, 1]. The signatures may add the same numbers in another order."""

_INT64 = np.iinfo(np.int64)
_AWKWARD_KEYS = np.array([0, -1, 1, _INT64.min, _INT64.max, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1], dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class ParityReport:
    """What was compared.

    Attributes:
        num_rows: rows compared.
        largest_score_difference: between offline and served scores.
    """

    num_rows: int
    largest_score_difference: float


def check_parity(
    workflow: nvt.Workflow, plan: TransformPlan, saved_model: Path, heldout: pa.Table, *, max_rows: int = 4096
) -> ParityReport:
    """Compare offline and served results.

    Args:
        workflow: the fitted workflow without its label.
        plan: the same workflow, compiled.
        saved_model: directory of the SavedModel.
        heldout: raw rows; columns beyond the plan's inputs are ignored.
        max_rows: how many held-out rows are compared.

    Raises:
        ParityError: anything differs; the message names the first column and row.
        ArtifactError: the SavedModel cannot be loaded or takes other inputs.
    """
    rows = awkward_rows(plan, heldout.slice(0, max_rows))
    served = plan.run(rows)
    with quiet_nvtabular():
        offline = workflow.transform(pd.DataFrame(rows))
    for name, column in served.items():
        _compare_column(name, column, offline[name], rows)
    signatures = _load_signatures(saved_model)
    expected = signatures[RAGGED_SIGNATURE](**_tensors(signatures[RAGGED_SIGNATURE], ragged_inputs(offline)))[SCORE]
    actual = signatures[PADDED_SIGNATURE](**_tensors(signatures[PADDED_SIGNATURE], padded_inputs(served)))[SCORE]
    difference = np.abs(expected.numpy() - actual.numpy()).reshape(-1)
    worst = int(np.argmax(difference))
    if not difference[worst] <= SCORE_TOLERANCE:  # also when it is NaN
        raise ParityError(
            f"scores differ: {_row(rows, worst)} scores {expected.numpy()[worst, 0]!r} offline and "
            f"{actual.numpy()[worst, 0]!r} served, and may differ by {SCORE_TOLERANCE}. Nothing was exported."
        )
    return ParityReport(num_rows=len(difference), largest_score_difference=float(difference[worst]))


def awkward_rows(plan: TransformPlan, heldout: pa.Table) -> dict[str, NDArray[Any]]:
    """Held-out rows, and each awkward key once in every column beside held-out values of the others."""
    raw = {spec.name: heldout[spec.name].to_numpy().astype(spec.dtype) for spec in plan.inputs}
    rows = {name: [column] for name, column in raw.items()}
    for awkward, awkward_column in raw.items():
        limits = np.iinfo(awkward_column.dtype)
        keys = _AWKWARD_KEYS[(limits.min <= _AWKWARD_KEYS) & (limits.max >= _AWKWARD_KEYS)].astype(awkward_column.dtype)
        for name, column in raw.items():
            rows[name].append(keys if name == awkward else np.resize(column, len(keys)))
    return {name: np.concatenate(parts) for name, parts in rows.items()}


def ragged_inputs(frame: pd.DataFrame) -> dict[str, NDArray[Any]]:
    """Encoded rows of NVTabular as inputs of the ragged signature."""
    inputs: dict[str, NDArray[Any]] = {}
    for name in frame.columns:
        if frame[name].dtype == object:
            inputs[name + VALUES] = np.concatenate([*frame[name], np.array([], np.int64)])
            inputs[name + OFFSETS] = np.concatenate(([0], np.cumsum(frame[name].map(len)))).astype(np.int32)
        else:
            inputs[name] = frame[name].to_numpy()
    return inputs


def padded_inputs(columns: Mapping[str, NDArray[Any] | Padded]) -> dict[str, NDArray[Any]]:
    """Rows of a plan as inputs of the padded signature."""
    inputs: dict[str, NDArray[Any]] = {}
    for name, column in columns.items():
        if isinstance(column, Padded):
            inputs |= {name + VALUES: column.values, name + NNZS: column.lengths.reshape(-1, 1)}
        else:
            inputs[name] = column.reshape(-1, 1)
    return inputs


def _compare_column(
    name: str, served: NDArray[Any] | Padded, offline: "pd.Series[Any]", rows: Mapping[str, NDArray[Any]]
) -> None:
    if isinstance(served, Padded):
        values, offsets = served.ragged()
        lists = np.split(values, offsets[1:-1])
        same = [np.array_equal(a, b) for a, b in zip(lists, offline, strict=True)]
        shown: Any = lists
    else:
        same = list(served == offline.to_numpy())
        shown = served
        if served.dtype != offline.dtype:
            raise ParityError(f"column {name!r} is {served.dtype} served and {offline.dtype} offline.")
    if not all(same):
        row = same.index(False)
        raise ParityError(
            f"column {name!r} differs: {_row(rows, row)} gives {offline.iloc[row]} offline and {shown[row]} served. "
            "Nothing was exported."
        )


def _row(rows: Mapping[str, NDArray[Any]], index: int) -> dict[str, Any]:
    return {name: column[index].item() for name, column in rows.items()}


def _load_signatures(path: Path) -> Any:
    try:
        loaded = tf.saved_model.load(str(path))
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise ArtifactError(f"{path} is not a SavedModel that can be loaded ({error}). Train again.") from None
    for name in (RAGGED_SIGNATURE, PADDED_SIGNATURE):
        if name not in loaded.signatures:
            raise ArtifactError(f"{path} has signatures {sorted(loaded.signatures)}, expected {name!r}. Train again.")
    loaded.signatures.keep_alive = loaded  # the functions hold their variables only weakly
    return loaded.signatures


def _tensors(signature: Any, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Cast to what the signature takes, so that int32 and int64 models are both fed."""
    expected = signature.structured_input_signature[1]
    if set(expected) != set(arrays):
        raise ArtifactError(
            f"the SavedModel takes {sorted(expected)}, the workflow makes {sorted(arrays)}. They do not match."
        )
    return {name: tf.constant(arrays[name], dtype=spec.dtype) for name, spec in expected.items()}
