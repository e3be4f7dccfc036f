"""The gate before an export, for rows that may hold several candidates."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rankline.serving.export.parity import ParityReport, check_parity
from rankline.workflows.compiler.compile import compile_workflow
from rankline.workflows.core.errors import ParityError
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in
from rankline.workflows.nvt.operators import NullToEmptyList

ROWS = pd.DataFrame(
    {"user": ["u", "v", "u"], "item": ["a", "b", "c"], "history": [["b"], ["a", "c"], []], "label": [0.0, 1.0, 0.0]}
)
HELDOUT = pa.table(
    {"user": ["u", None, "w"], "item": ["b", "c", None], "history": [["a", "b", "c"], [], ["never"]]},
)


class Scores:
    """A score of one's own per row and candidate; the columns of candidates are (N,) or (N, C)."""

    OPERATOR, OUTPUT = object, "score"
    PARAMETERS: Mapping[str, str] = MappingProxyType({})

    def __init__(self, path: Path = Path()) -> None: ...

    def operator(self, encoded: Any) -> Any: ...

    def score_offline(self, frame: pd.DataFrame) -> Any:
        histories = np.array([float(np.sum(history)) for history in frame["history"]])
        return self.scored(frame["user"].to_numpy()[:, None], frame["item"].to_numpy()[:, None], histories[:, None])

    def score_served(self, columns: Any) -> Any:
        histories = columns["history"].values.sum(axis=1, keepdims=True)
        return self.scored(columns["user"][:, None], columns["item"].reshape(len(histories), -1), histories)

    def scored(self, user: Any, item: Any, history: Any) -> Any:
        return np.tanh(0.01 * user + 0.1 * item * history).reshape(-1)


class MindingOthers(Scores):
    """A candidate's score depends on those beside it, as under batch normalisation that is left switched on."""

    def scored(self, user: Any, item: Any, history: Any) -> Any:
        return super().scored(user, item - item.mean(axis=1, keepdims=True) + item[:, :1], history)


class OnePerRow(Scores):
    """Only the first candidate is scored."""

    def scored(self, user: Any, item: Any, history: Any) -> Any:
        return super().scored(user, item[:, :1], history)


def checked(directory: Path, model: Any, candidates: tuple[str, ...]) -> ParityReport:
    with quiet_nvtabular():
        history = ["history"] >> NullToEmptyList() >> ops.ListSlice(-2)
        workflow = nvt.Workflow((["user", "item"] >> ops.Categorify()) + (history >> ops.Categorify()))
        keep_vocabularies_in(workflow, directory)
        workflow.fit(nvt.Dataset(ROWS))
    return check_parity(workflow, compile_workflow(workflow, None, candidates), model, HELDOUT, candidates=candidates)


def test_rows_with_several_candidates_are_compared_with_each_alone(tmp_path: Path) -> None:
    report = checked(tmp_path, Scores(), ("item",))
    assert report.num_candidates == 3
    assert report.largest_score_difference < 1e-12


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (MindingOthers, r"scores differ: {'user': .*'item': .*} scores .* alone and .* among other candidates"),
        (OnePerRow, "gives 3 scores for 3 rows with 3 candidates each, expected 9: its output is not one score per"),
    ],
)
def test_model_that_scores_candidates_otherwise_is_refused(tmp_path: Path, model: Any, message: str) -> None:
    assert checked(tmp_path / "one", model(), ()).num_candidates == 0
    with pytest.raises(ParityError, match=message):
        checked(tmp_path / "several", model(), ("item",))
