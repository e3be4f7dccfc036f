"""What the gate before an export lets through and what it stops."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import tensorflow as tf
import torch

from rankline.serving.engines import engine_for
from rankline.serving.engines.offline import OfflineModel
from rankline.serving.export.parity import check_parity, edge_case_rows, transform_offline
from rankline.workflows.compiler.compile import compile_workflow
from rankline.workflows.core.errors import ArtifactError, ParityError
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in, load_workflow, save_workflow
from rankline.workflows.nvt.operators import NullToEmptyList
from rankline.workflows.plan import Column, StepCall, TransformPlan
from rankline.workflows.plan.steps import Fill
from rankline.workflows.schema.model_artifact import SAVED_MODEL, TORCH_SCRIPT
from rankline.workflows.schema.ragged import Padded
from rankline.workflows.schema.tensor_names import PADDED_SIGNATURE, RAGGED_SIGNATURE
from tests.oracles.nvtabular import fitted
from tests.oracles.tolerance import SCORE_ROUNDING

ROWS = pd.DataFrame({"user": [1, 1, 2, 3], "item": [10, 20, 30, 10]})
ITEMS = pd.DataFrame({"item": [10, 20, 30], "tags": [["a", "é"], [], ["a"]]})
HELDOUT = pa.table({"user": [1, 2, 9], "item": [10, 20, 99], "label": [1.0, 0.0, 1.0]})


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> nvt.Workflow:
    with quiet_nvtabular():
        tags = (["item"] >> ops.JoinExternal(ITEMS, on=["item"]))["tags"] >> NullToEmptyList() >> ops.Categorify()
        workflow = nvt.Workflow((["user", "item"] >> ops.Categorify()) + tags)
        keep_vocabularies_in(workflow, tmp_path_factory.mktemp("workflow"))
        return workflow.fit(nvt.Dataset(ROWS))


@pytest.fixture(scope="module")
def plan(workflow: nvt.Workflow) -> TransformPlan:
    return compile_workflow(workflow)


def saved_model(path: Path, *, padded_bias: float = 0.0, padded_name: str = PADDED_SIGNATURE) -> Path:
    """A model that adds up scaled ids; its padded form may be off by `padded_bias`."""

    class Sum(tf.Module):
        def __init__(self) -> None:
            self.scale = tf.Variable(0.001)

    module = Sum()
    single = tf.TensorSpec([None], tf.int64)
    column = tf.TensorSpec([None, 1], tf.int64)

    def ragged(user, item, tags__values, tags__offsets):  # type: ignore[no-untyped-def]
        lists = tf.RaggedTensor.from_row_splits(tags__values, tags__offsets)
        total = user + item + tf.reduce_sum(lists, axis=1)
        return {"score": module.scale * tf.cast(total, tf.float32)[:, None]}

    def padded(user, item, tags__values, tags__nnzs):  # type: ignore[no-untyped-def]
        inside = tf.sequence_mask(tags__nnzs[:, 0], tf.shape(tags__values)[1])
        total = user + item + tf.reduce_sum(tf.where(inside, tags__values, 0), axis=1, keepdims=True)
        return {"score": module.scale * tf.cast(total, tf.float32) + padded_bias}

    signatures = {
        RAGGED_SIGNATURE: tf.function(ragged).get_concrete_function(
            user=single, item=single, tags__values=single, tags__offsets=tf.TensorSpec([None], tf.int32)
        ),
        padded_name: tf.function(padded).get_concrete_function(
            user=column,
            item=column,
            tags__values=tf.TensorSpec([None, None], tf.int64),
            tags__nnzs=tf.TensorSpec([None, 1], tf.int32),
        ),
    }
    tf.saved_model.save(module, str(path), signatures=signatures)
    return path


def torch_script(path: Path, *, padding_bias: float = 0.0) -> Path:
    """The same as TorchScript; its score may be off by `padding_bias` for each place behind the end of a list."""

    class Sum(torch.nn.Module):
        def forward(self, user, item, tags__values, tags__nnzs):  # type: ignore[no-untyped-def]
            inside = torch.ones_like(tags__values).cumsum(1) <= tags__nnzs
            total = user + item + (tags__values * inside).sum(dim=1, keepdim=True)
            return 0.001 * total.to(torch.float32) + padding_bias * (~inside).sum(dim=1, keepdim=True)

    ids = torch.zeros((2, 1), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is deprecated")
        traced = torch.jit.trace(Sum(), (ids, ids, torch.zeros((2, 2), dtype=torch.int64), ids.to(torch.int32)))
    traced.save(str(path))
    return path


def tensorflow_model(path: Path, **options: Any) -> OfflineModel:
    return engine_for(SAVED_MODEL).load_trained(saved_model(path, **options))


def pytorch_model(path: Path, **options: Any) -> OfflineModel:
    return engine_for(TORCH_SCRIPT).load_trained(torch_script(path, **options))


LOADED = pytest.mark.parametrize("load", [tensorflow_model, pytorch_model])


@LOADED
def test_faithful_plan_and_model_pass(workflow: nvt.Workflow, plan: TransformPlan, tmp_path: Path, load: Any) -> None:
    report = check_parity(workflow, plan, load(tmp_path / "m"), HELDOUT)
    assert report.num_rows > len(HELDOUT)
    assert report.largest_score_difference < SCORE_ROUNDING


@LOADED
@pytest.mark.parametrize("column", ["user", "item", "tags"])
def test_wrong_id_in_a_table_is_found(
    workflow: nvt.Workflow, plan: TransformPlan, tmp_path: Path, column: str, load: Any
) -> None:
    columns = tuple(
        replace(c, values=np.where(c.values == 3, 4, c.values)) if c.name == column else c for c in plan.columns
    )
    with pytest.raises(
        ParityError, match=f"column '{column}' differs: .*offline but .* when served. Nothing was exported"
    ):
        check_parity(workflow, replace(plan, columns=columns), load(tmp_path / "m"), HELDOUT)


def test_truncated_list_is_found(workflow: nvt.Workflow, plan: TransformPlan, tmp_path: Path) -> None:
    tags = plan.columns[2]
    assert tags.lengths is not None
    shorter = replace(tags, lengths=np.minimum(tags.lengths, 1))
    with pytest.raises(ParityError, match="column 'tags' differs"):
        check_parity(
            workflow, replace(plan, columns=(*plan.columns[:2], shorter)), tensorflow_model(tmp_path / "m"), HELDOUT
        )


@pytest.mark.parametrize("bias", [1e-3, float("nan")])
def test_signatures_that_score_differently_are_found(
    workflow: nvt.Workflow, plan: TransformPlan, tmp_path: Path, bias: float
) -> None:
    with pytest.raises(ParityError, match="the score of the row .*offline but .*when served"):
        check_parity(workflow, plan, tensorflow_model(tmp_path / "m", padded_bias=bias), HELDOUT)


def test_torchscript_that_depends_on_padding_is_found(
    workflow: nvt.Workflow, plan: TransformPlan, tmp_path: Path
) -> None:
    short = HELDOUT.filter(pa.array([False, True, True]))  # the plan pads to the longest list that there is
    check_parity(workflow, plan, pytorch_model(tmp_path / "m"), short)
    with pytest.raises(ParityError, match="the score of the row .*offline but .*when served"):
        check_parity(workflow, plan, pytorch_model(tmp_path / "n", padding_bias=1e-3), short)


def test_missing_signature_or_model_is_refused(workflow: nvt.Workflow, plan: TransformPlan, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="expected 'serving_padded'. Train again"):
        check_parity(workflow, plan, tensorflow_model(tmp_path / "m", padded_name="other"), HELDOUT)
    with pytest.raises(ArtifactError, match="nothing cannot be read"):
        engine_for(SAVED_MODEL).load_trained(tmp_path / "nothing")
    with pytest.raises(ArtifactError, match="cannot be loaded as TorchScript"):
        engine_for(TORCH_SCRIPT).load_trained(tmp_path / "nothing")


@LOADED
def test_model_of_other_columns_is_refused(
    workflow: nvt.Workflow, plan: TransformPlan, tmp_path: Path, load: Any
) -> None:
    fewer = replace(plan, columns=plan.columns[:2])
    with pytest.raises(ArtifactError, match="expects the inputs .*'tags__.*the workflow produces"):
        check_parity(workflow, fewer, load(tmp_path / "m"), HELDOUT)


MIXED = pd.DataFrame(
    {
        "word": ["a", "é", None, "b", "a"],
        "price": [1.5, np.nan, -0.0, 2.5, 3.0],
        "count": [1, 2, 3, 2, 1],
        "words": [["a", "é"], [], ["b"], ["a"], ["b", "a"]],
        "floats": [[1.5, np.nan], [], [2.0], [0.5], [1.0]],
        "flag": [True, False, True, True, False],
        "day": [0, 1, 2, 3, 3],
        "label": [0.0, 1.0, 1.0, 0.0, 1.0],
    }
)
MIXED_HELDOUT = pa.table(
    {
        "word": ["a", None, "never", "b"],
        "price": [1.5, None, float("nan"), 1e300],
        "count": pa.array([1, None, 2, 7], pa.int64()),
        "words": [["a"], ["never", None], [], ["b", "a"]],
        "floats": [[1.0], [float("nan")], [], [-0.0, 2.5]],
        "flag": [True, False, True, False],
        "day": [0, 3, 1, 2],
    }
)


class Rows:
    """A model of one's own: the score of a row is made of nothing but its columns' bits, so any difference shows."""

    OPERATOR, OUTPUT, PARAMETERS = object, "score", MappingProxyType({})

    def __init__(self, path: Path) -> None: ...

    def operator(self, encoded: Any) -> Any: ...

    def score_offline(self, frame: pd.DataFrame) -> Any:
        return np.sum([_scored(list(frame[name])) for name in frame], axis=0)

    def score_served(self, columns: Any) -> Any:
        lists = {n: np.split(*_ragged(c)) if isinstance(c, Padded) else list(c) for n, c in columns.items()}
        return np.sum([_scored(values) for values in lists.values()], axis=0)


def _ragged(column: Padded) -> tuple[Any, Any]:
    lists = column.ragged()
    values, offsets = lists.values, lists.offsets
    return values, offsets[1:-1]


def _scored(values: list[Any]) -> Any:
    return np.array([np.tanh(float(np.sum(value))) for value in values])


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[nvt.Workflow, TransformPlan]:
    filled = ["price", "count"] >> ops.FillMissing(0) >> ops.Clip(min_value=0) >> ops.LogOp()
    graph = (["word", "words"] >> ops.Categorify()) + filled + ["floats"] + (["flag"] >> ops.AddTags(["x"]))
    workflow = fitted(lambda: graph, MIXED, tmp_path_factory.mktemp("mixed"))
    return workflow, compile_workflow(workflow)


def test_strings_floats_lists_and_missing_values_pass(mixed: tuple[nvt.Workflow, TransformPlan]) -> None:
    workflow, plan = mixed
    report = check_parity(workflow, plan, Rows(Path()), MIXED_HELDOUT)
    assert report.num_left_out == 0
    assert report.num_rows > 40
    assert report.largest_score_difference < 1e-12
    assert report.nulls_not_compared == ("words", "floats", "flag")  # which nothing fills


def test_booleans_of_object_dtype_are_compared(tmp_path: Path) -> None:
    graph = (["flag"] >> ops.FillMissing(1, add_binary_cols=True)) + (["day"] >> ops.FillMedian())
    workflow = fitted(lambda: graph, MIXED, tmp_path)
    heldout = MIXED_HELDOUT.set_column(5, "flag", pa.array([True, None, False, None]))
    report = check_parity(workflow, compile_workflow(workflow), Rows(Path()), heldout)
    assert report.nulls_not_compared == ()


@pytest.mark.parametrize("column", ["word", "count"])
def test_missing_value_served_as_another_is_found(mixed: tuple[nvt.Workflow, TransformPlan], column: str) -> None:
    workflow, plan = mixed
    complete = MIXED_HELDOUT.set_column(0, "word", pa.array(["a", "é", "never", "b"])).set_column(
        2, "count", pa.array([1, 3, 2, 7])
    )
    check_parity(workflow, plan, Rows(Path()), complete)
    indexes = tuple(replace(index, missing_row=1) if index.input == column else index for index in plan.indexes)
    steps = tuple(
        replace(call, step=replace(call.step, value=5))
        if isinstance(call, StepCall) and isinstance(call.step, Fill) and call.inputs == (column,)
        else call
        for call in plan.steps
    )
    with pytest.raises(ParityError, match=f"column '{column}' differs: .*'{column}': None"):
        check_parity(workflow, replace(plan, indexes=indexes, steps=steps), Rows(Path()), complete)


def test_edge_case_values_are_of_the_kind_of_their_column(mixed: tuple[nvt.Workflow, TransformPlan]) -> None:
    _, plan = mixed
    words = {"word": pa.large_string(), "words": pa.list_(pa.large_string())}
    schema = pa.schema([(f.name, words.get(f.name, f.type)) for f in MIXED_HELDOUT.schema])
    rows = edge_case_rows(plan, MIXED_HELDOUT.cast(schema))
    assert {"", "日本", "a\0b"} <= set(rows["word"].to_pylist())
    assert max(map(len, rows["word"].to_pylist())) > 200
    prices = rows["price"].to_numpy()
    assert np.isnan(prices).any()
    assert np.isinf(prices).any()
    assert (np.signbit(prices) & (prices == 0)).any()
    assert [] in rows["words"].to_pylist()
    assert ["é"] in rows["words"].to_pylist()


@pytest.mark.parametrize("bits", [-0.0, 1e-300])
def test_floats_are_compared_by_their_bits(tmp_path: Path, bits: float) -> None:
    rows = pd.DataFrame({"user": [1, 2, 3], "x": [0.0, 1.0, 0.0]})
    items = pd.DataFrame({"user": [1, 2], "y": [0.0, np.nan]})
    with quiet_nvtabular():
        joined = ["user"] >> ops.JoinExternal(items, on="user")
    workflow = fitted(lambda: joined["y"], rows, tmp_path)
    plan = compile_workflow(workflow)
    check_parity(workflow, plan, Rows(Path()), pa.table({"user": [1, 2, 3]}))  # NaN equals NaN, and so do scores of it
    (column,) = plan.columns
    assert isinstance(column, Column)
    other = replace(plan, columns=(replace(column, values=np.where(column.values == 0, bits, column.values)),))
    with pytest.raises(ParityError, match="column 'y' differs: the row {'user': 1} yields 0.0 offline"):
        check_parity(workflow, other, Rows(Path()), pa.table({"user": [1, 2, 3]}))


class BlindToOverflow(Rows):
    """What a processor may make of NaN and infinity, with every other score off by `off`."""

    off = 0.0

    def score_served(self, columns: Any) -> Any:
        scores = super().score_served(columns)
        return np.where(np.abs(scores) < 1, scores, 0) + self.off


def test_scores_of_nan_and_overflows_are_compared_in_given_rows_only(tmp_path: Path) -> None:
    workflow = fitted(lambda: ["price"] >> ops.AddTags(["x"]), MIXED, tmp_path)
    plan, served, heldout = compile_workflow(workflow), BlindToOverflow(Path()), pa.table({"price": [1.5, 2.5]})
    check_parity(workflow, plan, Rows(Path()), heldout, served_model=served)
    for odd in (np.nan, np.inf):
        with pytest.raises(ParityError, match=rf"the score of the row \{{'price': {odd}\}}"):
            check_parity(workflow, plan, Rows(Path()), pa.table({"price": [1.5, odd]}), served_model=served)
    served.off = 1e-3
    with pytest.raises(ParityError, match=r"the score of the row \{'price': 1.5\}"):
        check_parity(workflow, plan, Rows(Path()), heldout, served_model=served)


class Averages(Rows):
    """Undefined for an empty list, of which an engine may make anything."""

    def score_offline(self, frame: pd.DataFrame) -> Any:
        return np.array([np.mean(ids) if len(ids) else np.nan for ids in frame["words"]])

    def score_served(self, columns: Any) -> Any:
        return np.array([np.mean(ids) if len(ids) else 0.5 for ids in np.split(*_ragged(columns["words"]))])


def test_undefined_scores_are_compared_in_given_rows_only(tmp_path: Path) -> None:
    workflow = fitted(lambda: ["words"] >> ops.Categorify(), MIXED, tmp_path)
    plan, filled = compile_workflow(workflow), pa.table({"words": [["a"], ["a", "b"]]})
    check_parity(workflow, plan, Averages(Path()), filled)
    with pytest.raises(ParityError, match="is nan offline but 0.5 when served.* The model computes with NaN"):
        check_parity(workflow, plan, Averages(Path()), pa.table({"words": [["a"], []]}))


class Shifted(Rows):
    """Two scores per row, which `shift` changes as a whole."""

    def __init__(self, shift: Callable[[Any], Any]) -> None:
        self.shift = shift

    def score_offline(self, frame: pd.DataFrame) -> Any:
        return self.shift(np.stack([super().score_offline(frame)] * 2, axis=1))

    def score_served(self, columns: Any) -> Any:
        return self.shift(np.stack([super().score_served(columns)] * 2, axis=1))


def test_score_that_depends_on_the_other_rows_of_the_batch_is_refused(tmp_path: Path) -> None:
    workflow = fitted(lambda: ["price"] >> ops.AddTags(["x"]), MIXED, tmp_path)
    plan, heldout = compile_workflow(workflow), pa.table({"price": [1.5, 2.5, 0.5]})
    check_parity(workflow, plan, Shifted(lambda scores: scores), heldout)
    centered = Shifted(lambda scores: scores - scores.mean(axis=0))
    message = (
        r"the score of the row \{'price': 0.5\} is \[.*\] in a batch of its own copies but \[-0.4.*\] in a batch with"
    )
    with pytest.raises(ParityError, match=message):
        check_parity(workflow, plan, centered, heldout)
    with pytest.raises(ParityError, match="returns 1 scores for a batch of 8 rows, expected one per row"):
        check_parity(workflow, plan, Shifted(lambda scores: scores[:1]), heldout.slice(0, 1))
    with pytest.raises(ParityError, match=r"is \[0.9.* offline but \[1.9.* when served"):
        check_parity(
            workflow,
            plan,
            Shifted(lambda scores: scores),
            heldout,
            served_model=Shifted(lambda scores: scores + 1),
        )


class Widths(Rows):
    """The score is the width to which lists are padded."""

    def score_offline(self, frame: pd.DataFrame) -> Any:
        return np.full(len(frame), max(map(len, frame["words"])))

    def score_served(self, columns: Any) -> Any:
        return np.full(len(columns["words"].lengths), columns["words"].values.shape[1])


def test_score_that_depends_on_padding_to_the_longest_list_of_the_batch_is_refused(tmp_path: Path) -> None:
    workflow = fitted(lambda: ["words"] >> ops.Categorify(), MIXED, tmp_path)
    heldout = pa.table({"words": [["a"], ["b", "a"], ["a"]]})
    with pytest.raises(ParityError, match="is 1 in a batch of its own copies but 2 in .* mask the padding of lists"):
        check_parity(workflow, compile_workflow(workflow), Widths(Path()), heldout)


def test_missing_value_that_would_reach_the_model_is_refused(tmp_path: Path) -> None:
    workflow = fitted(lambda: ["day"] >> ops.AddTags(["x"]), MIXED, tmp_path)
    with pytest.raises(
        ParityError, match="column 'day' has missing values, first in row 2.*FillMissing.*Nothing was exported"
    ):
        check_parity(
            workflow, compile_workflow(workflow), Rows(Path()), pa.table({"day": pa.array([1, None], pa.int64())})
        )


def test_integers_with_missing_training_values_are_compared_as_floats(tmp_path: Path) -> None:
    large = 2**53 + 1
    workflow = fitted(lambda: ["id"] >> ops.Categorify(), pd.DataFrame({"id": [large, 1, np.nan]}), tmp_path)
    plan = compile_workflow(workflow)
    assert plan.inputs[0].dtype == "float64"
    report = check_parity(workflow, plan, Rows(Path()), pa.table({"id": pa.array([large, None, 5], pa.int64())}))
    assert report.num_left_out == 0


def test_heldout_rows_without_a_column_or_of_another_type_are_refused(tmp_path: Path) -> None:
    workflow = fitted(lambda: ["day"] >> ops.Categorify(), MIXED, tmp_path)
    for other in (pa.table({"night": [1]}), pa.table({"day": ["Monday"]})):
        with pytest.raises(
            ParityError, match="column 'day' is missing from the held-out rows .* int64 .*Prepare the data again"
        ):
            check_parity(workflow, compile_workflow(workflow), Rows(Path()), other)


def test_integers_missing_in_lists_are_refused(tmp_path: Path) -> None:
    workflow = fitted(lambda: ["ids"] >> ops.Categorify(), pd.DataFrame({"ids": [[1, 2], [3]]}), tmp_path)
    plan = compile_workflow(workflow)
    check_parity(workflow, plan, Rows(Path()), pa.table({"ids": [[1, 9], []]}))
    with pytest.raises(ParityError, match="column 'ids' has lists of int64 with missing values"):
        check_parity(workflow, plan, Rows(Path()), pa.table({"ids": [[1, None], [2]]}))


def test_rows_on_which_nvtabular_fails_are_left_out_and_counted(tmp_path: Path) -> None:
    graph = ["day"] >> ops.JoinGroupby(cont_cols=["price"], stats=["count"])
    workflow = fitted(lambda: graph, MIXED, tmp_path)
    plan = compile_workflow(workflow)
    report = check_parity(workflow, plan, Rows(Path()), MIXED_HELDOUT)
    assert report.num_left_out > 0  # a day that it has not seen
    assert report.num_rows > len(MIXED_HELDOUT)
    with pytest.raises(ParityError, match="NVTabular failed on the held-out rows"):
        check_parity(workflow, plan, Rows(Path()), pa.table({"day": [99], "price": [1.0]}))


@pytest.mark.parametrize("pair", [[4, 0], [-1, 0], [0, 4], [0, 2**62]])
def test_rows_that_a_matrix_lacks_are_not_read_past_its_end(tmp_path: Path, pair: list[int]) -> None:
    matrix = scipy.sparse.coo_matrix(np.eye(4))
    rows = MIXED.assign(other=[3, 1, 0, 2, 3], day=[0, 1, 2, 3, 3])[["day", "other"]]
    workflow = fitted(lambda: [["day", "other"]] >> ops.ColumnSimilarity(matrix, on_device=False), rows, tmp_path)
    assert workflow.transform(rows)["day_other_sim"].tolist() == [0.0, 1.0, 0.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="ColumnSimilarity expects row numbers from 0 to 3"):
        workflow.transform(pd.DataFrame([pair], columns=["day", "other"]))


def test_columns_that_only_offline_takes_are_filled_in(tmp_path: Path) -> None:
    """NVTabular's TargetEncoding cannot transform without its target."""
    workflow = fitted(lambda: (["word"] >> ops.TargetEncoding("label", kfold=1)) + ["label"], MIXED, tmp_path)
    save_workflow(workflow, tmp_path / "saved")
    plan = compile_workflow(load_workflow(tmp_path / "saved").remove_inputs(["label"]))
    report = check_parity(workflow, plan, Rows(Path()), MIXED_HELDOUT)
    assert report.num_left_out == 0
    assert [column.name for column in plan.columns] == ["TE_word_label"]


def test_lists_that_only_offline_takes_may_have_been_empty_when_fitted(tmp_path: Path) -> None:
    rows = pd.DataFrame({"word": ["a", "b"] * 8, "tags": [[], ["x"]] * 8, "label": [0, 1] * 8})
    tags = ["tags"] >> ops.Categorify() >> ops.ListSlice(0, 3, pad=True)
    workflow = fitted(lambda: (["word"] >> ops.TargetEncoding("label", kfold=1)) + tags, rows, tmp_path)
    made = transform_offline(workflow, pa.table({"word": ["a", "b"]}))
    assert made["TE_word_label"].is_monotonic_increasing
    assert made["tags"].map(len).tolist() == [0, 0]


def test_training_rows_are_compared_with_the_encoding_of_now_up_to_rounding(tmp_path: Path) -> None:
    workflow = fitted(lambda: (["price"] >> ops.LogOp()) + (["day"] >> ops.Categorify()), MIXED, tmp_path)
    plan, rows = compile_workflow(workflow), MIXED_HELDOUT.select(["price", "day"])
    encoded = pa.Table.from_pandas(transform_offline(workflow, rows))
    check_parity(workflow, plan, Rows(Path()), rows, trained_on=encoded)
    price = encoded["price"].to_numpy()
    on_another_processor = encoded.set_column(0, "price", pa.array(np.nextafter(price, np.inf, dtype=price.dtype)))
    check_parity(workflow, plan, Rows(Path()), rows, trained_on=on_another_processor)
    for name, values in (("price", price + 0.01), ("day", encoded["day"].to_numpy() + 1)):
        other = encoded.set_column(encoded.column_names.index(name), name, pa.array(values))
        with pytest.raises(ParityError, match=f"column '{name}' differs: .* was .* when the data was prepared, but is"):
            check_parity(workflow, plan, Rows(Path()), rows, trained_on=other)
