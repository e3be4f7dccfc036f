"""Several candidates per row: what they share is transformed once, each comes out as alone, and exports check that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.export.parity import ParityReport, check_parity
from rankline.workflows.compiler.compile import compile_workflow
from rankline.workflows.core.errors import LoweringError, ParityError, RequestError
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in
from rankline.workflows.nvt.operators import NullToEmptyList
from rankline.workflows.plan import (
    ANY_WIDTH,
    CandidatePlan,
    Column,
    ColumnSpec,
    Computed,
    KeyIndex,
    StepCall,
    TransformPlan,
)
from rankline.workflows.plan.steps import Arithmetic, Combine, Fill, Slice, Step
from rankline.workflows.schema.ragged import Padded, padded_tensors
from tests.oracles.nvtabular import fitted

CANDIDATES = ("item", "price")


def plan(*columns: Any) -> TransformPlan:
    """Results 0 and 1 are of user and item, 3 and 4 of the price, 2, 5 and 6 of the history, 7 of user and item."""
    return TransformPlan(
        inputs=(
            ColumnSpec(name="user", dtype="int64"),
            ColumnSpec(name="item", dtype="object"),
            ColumnSpec(name="history", dtype="object", width=ANY_WIDTH),
            ColumnSpec(name="price", dtype="float32"),
        ),
        indexes=(
            KeyIndex.build("user", np.array([7, 8]), missing_row=3),
            KeyIndex.build("item", pa.array([b"a", b"b", b"c"], pa.large_binary()), missing_row=4),
        ),
        steps=(
            KeyIndex.build("history", pa.array([b"b", b"c"], pa.large_binary())),
            StepCall(step=Fill(value=1.5), inputs=("price",)),
            StepCall(step=Arithmetic(function="log"), inputs=(3,)),
            StepCall(step=Slice(start=-2, end=2**31, width=2), inputs=("history",)),
            KeyIndex.build(5, pa.array([b"b", b"c"], pa.large_binary())),
            StepCall(step=Combine(sizes=(4, 5)), inputs=(0, 1)),
        ),
        columns=columns
        or (
            Computed(name="log_price", source=4, dtype="float32"),
            Column(name="user", index=0, values=np.array([2, 3, 4, 1])),
            Column(name="history", index=6, values=np.array([2, 3, 4]), width=2),
            Column(name="item", index=1, values=np.array([2, 3, 4, 5, 1])),
        ),
    )


TAGS = Column(
    name="tags", index=1, values=np.zeros((5, 2), dtype=np.int64), lengths=np.array([0, 1, 2, 0, 0], dtype=np.int32)
)
MIXED = Column(name="both", index=7, values=np.arange(20))

WORDS = st.sampled_from([b"a", b"b", b"c", b"never", b""])


@given(st.integers(1, 4), st.integers(1, 5), st.data())
def test_several_candidates_are_transformed_as_each_alone(num_rows: int, count: int, data: st.DataObject) -> None:
    def drawn(of: Any, size: int) -> list[Any]:
        return data.draw(st.lists(of, min_size=size, max_size=size))

    def objects(size: int) -> Any:
        return np.array([*drawn(WORDS, size), None], dtype=object)[:-1]

    width = data.draw(st.integers(1, 4))
    request = {
        "user": np.array(drawn(st.integers(6, 9), num_rows)),
        "item": objects(num_rows * count).reshape(num_rows, count),
        "history": Padded(
            objects(num_rows * width).reshape(num_rows, width),
            np.array(drawn(st.integers(0, width), num_rows), dtype=np.int32),
        ),
        "price": np.array(drawn(st.sampled_from([1.0, 2.5, np.nan]), num_rows * count), np.float32).reshape(
            num_rows, count
        ),
    }
    masks = {
        "user": np.array(drawn(st.booleans(), num_rows)),
        "item": np.array(drawn(st.booleans(), num_rows * count)).reshape(num_rows, count),
    }

    def alone(column: Any) -> Any:
        if isinstance(column, Padded):
            return Padded(column.values.repeat(count, axis=0), column.lengths.repeat(count))
        return column.reshape(-1) if column.ndim == 2 else column.repeat(count)

    expected = plan().run(*({name: alone(part) for name, part in parts.items()} for parts in (request, masks)))
    made = CandidatePlan.of(plan(), CANDIDATES).run(request, masks)
    assert list(made) == list(expected)
    for name, column in made.items():
        for got, wanted in zip(parts_of(alone(column)), parts_of(expected[name]), strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert made["item"].shape == made["log_price"].shape == (num_rows, count)  # type: ignore[union-attr]


def parts_of(column: Any) -> tuple[Any, ...]:
    return (column.values, column.lengths) if isinstance(column, Padded) else (column,)


@dataclass(frozen=True, kw_only=True)
class Counting(Step):
    """Passes lists on, and keeps how many values it has seen."""

    seen: list[int] = field(default_factory=list)

    def _compute(self, *columns: Any) -> Any:
        self.seen.append(len(columns[0].values))
        return columns[0]


def test_history_is_transformed_once_per_row_and_not_per_candidate() -> None:
    counting = Counting()
    steps = (*plan().steps[:3], StepCall(step=counting, inputs=("history",)), *plan().steps[4:])
    split = CandidatePlan.of(replace(plan(), steps=steps), CANDIDATES)
    split.run(request(num_candidates=1000, history=100))
    assert counting.seen == [100]


def request(num_candidates: int, history: int = 2) -> dict[str, Any]:
    return {
        "user": np.array([7]),
        "item": np.full((1, num_candidates), b"a", dtype=object),
        "history": Padded(np.full((1, history), b"b", dtype=object), np.array([history], dtype=np.int32)),
        "price": np.ones((1, num_candidates), dtype=np.float32),
    }


def test_single_candidate_plan_has_the_plain_layout() -> None:
    split = padded_tensors(CandidatePlan.of(plan(), CANDIDATES).run(request(1)))
    plain = padded_tensors(plan().run({name: _flat(column) for name, column in request(1).items()}))
    assert {name: array.shape for name, array in split.items()} == {name: array.shape for name, array in plain.items()}
    for name, array in plain.items():
        np.testing.assert_array_equal(split[name], array)


def _flat(column: Any) -> Any:
    return column.reshape(-1) if isinstance(column, np.ndarray) else column


def test_columns_of_candidates_are_known() -> None:
    assert CandidatePlan.of(plan(), CANDIDATES).made_of_candidates == ("log_price", "item")


def test_plan_supports_only_candidates_or_none() -> None:
    column = Column(name="item", index=0, values=np.array([2, 3, 4, 5, 1]))
    items = TransformPlan(inputs=plan().inputs[1:2], indexes=plan().indexes[1:], columns=(column,))
    made = CandidatePlan.of(items, ["item"]).run({"item": np.array([[b"a", b"b"]], dtype=object)})
    np.testing.assert_array_equal(made["item"], [[3, 4]])  # type: ignore[arg-type]
    assert CandidatePlan.of(plan(plan().columns[1]), CANDIDATES).run(request(3))["user"].tolist() == [3]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("columns", "candidates", "message"),
    [
        ((MIXED,), ["item"], r"column 'both' combines \['item'\].*with \['user'\], which the candidates share"),
        ((TAGS,), ["item"], "column 'tags' is a list per candidate"),
        ((), ["history"], r"candidates \['history'\] are not single-valued raw columns. Available: \['user', 'it"),
        ((), ["items"], r"candidates \['items'\] are not single-valued raw columns"),
    ],
)
def test_column_that_is_not_of_a_candidate_is_refused(
    columns: Sequence[Any], candidates: list[str], message: str
) -> None:
    with pytest.raises(LoweringError, match=message):
        CandidatePlan.of(plan(*columns), candidates)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"item": np.zeros((1, 0), dtype=object)}, r"'item' has shape \[1, 0\], expected at least one candidate"),
        ({"item": np.array([b"a"], dtype=object)}, r"'item' has shape \[1\], expected at least one candidate per row"),
        ({"price": np.ones((1, 2), np.float32)}, r"candidate shapes.*'price': \[1, 2\].* do not match each other"),
        ({"user": np.array([7, 8])}, "do not match each other or the number of rows"),
        ({"price": np.ones((1, 3))}, "'price' is float64, expected float32"),
    ],
)
def test_request_that_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        CandidatePlan.of(plan(), CANDIDATES).run(request(3) | changed)


def test_workflow_that_mixes_candidates_with_others_is_refused_when_it_is_compiled(tmp_path: Path) -> None:
    rows = pd.DataFrame({"user": [1, 2, 1], "item": [5, 6, 6]})
    workflow = fitted(lambda: [["user", "item"]] >> ops.Categorify(encode_type="combo"), rows, tmp_path)
    compile_workflow(workflow)
    with pytest.raises(LoweringError, match="column 'user_item' combines"):
        compile_workflow(workflow, candidates=["item"])


ROWS = pd.DataFrame(
    {"user": ["u", "v", "u"], "item": ["a", "b", "c"], "history": [["b"], ["a", "c"], []], "label": [0.0, 1.0, 0.0]}
)
HELDOUT = pa.table({"user": ["u", None, "w"], "item": ["b", "c", None], "history": [["a", "b", "c"], [], ["never"]]})


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
        (MindingOthers, r"the score of the row {'user': .*'item': .*} is .* alone but .* with other candidates"),
        (
            OnePerRow,
            "returns 3 scores for 3 rows with 3 candidates each, expected 9. The model must return one score per",
        ),
    ],
)
def test_model_that_scores_candidates_otherwise_is_refused(tmp_path: Path, model: Any, message: str) -> None:
    assert checked(tmp_path / "one", model(), ()).num_candidates == 0
    with pytest.raises(ParityError, match=message):
        checked(tmp_path / "several", model(), ("item",))
