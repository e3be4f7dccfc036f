"""What the gate before an export lets through and what it stops."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf
import torch

from serving.backends.offline import OfflineModel, offline_model
from serving.compile import compile_workflow
from serving.parity import awkward_rows, check_parity
from serving.plan import TensorSpec, TransformPlan
from workflows.errors import ArtifactError, ParityError
from workflows.operators import NullToEmptyList
from workflows.tensor_names import PADDED_SIGNATURE, RAGGED_SIGNATURE
from workflows.trained import PYTORCH, TENSORFLOW
from workflows.upstream import nvt, ops, quiet_nvtabular
from workflows.workflow_store import keep_vocabularies_in

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
    return offline_model(TENSORFLOW, saved_model(path, **options))


def pytorch_model(path: Path, **options: Any) -> OfflineModel:
    return offline_model(PYTORCH, torch_script(path, **options))


LOADED = pytest.mark.parametrize("load", [tensorflow_model, pytorch_model])


@LOADED
def test_a_faithful_plan_and_model_pass(workflow: nvt.Workflow, plan: TransformPlan, tmp_path: Path, load: Any) -> None:
    report = check_parity(workflow, plan, load(tmp_path / "m"), HELDOUT)
    assert report.num_rows > len(HELDOUT)
    assert report.largest_score_difference < 1e-6


@LOADED
@pytest.mark.parametrize("column", ["user", "item", "tags"])
def test_one_wrong_id_in_a_table_is_found(
    workflow: nvt.Workflow, plan: TransformPlan, tmp_path: Path, column: str, load: Any
) -> None:
    columns = tuple(
        replace(c, values=np.where(c.values == 3, 4, c.values)) if c.name == column else c for c in plan.columns
    )
    with pytest.raises(ParityError, match=f"column '{column}' differs: .*offline.*served. Nothing was exported"):
        check_parity(workflow, replace(plan, columns=columns), load(tmp_path / "m"), HELDOUT)


def test_a_list_that_is_cut_short_is_found(workflow: nvt.Workflow, plan: TransformPlan, tmp_path: Path) -> None:
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
    with pytest.raises(ParityError, match="scores differ: .*offline and .*served"):
        check_parity(workflow, plan, tensorflow_model(tmp_path / "m", padded_bias=bias), HELDOUT)


def test_a_torchscript_that_minds_its_padding_is_found(
    workflow: nvt.Workflow, plan: TransformPlan, tmp_path: Path
) -> None:
    short = HELDOUT.filter(pa.array([False, True, True]))  # the plan pads to the longest list that there is
    check_parity(workflow, plan, pytorch_model(tmp_path / "m"), short)
    with pytest.raises(ParityError, match="scores differ: .*offline and .*served"):
        check_parity(workflow, plan, pytorch_model(tmp_path / "n", padding_bias=1e-3), short)


def test_a_model_without_the_signature_or_no_model_is_refused(
    workflow: nvt.Workflow, plan: TransformPlan, tmp_path: Path
) -> None:
    with pytest.raises(ArtifactError, match="expected 'serving_padded'. Train again"):
        check_parity(workflow, plan, tensorflow_model(tmp_path / "m", padded_name="other"), HELDOUT)
    with pytest.raises(ArtifactError, match="is not a SavedModel that can be loaded"):
        offline_model(TENSORFLOW, tmp_path / "nothing")
    with pytest.raises(ArtifactError, match="is not TorchScript that can be loaded"):
        offline_model(PYTORCH, tmp_path / "nothing")


@LOADED
def test_a_model_that_takes_other_columns_is_refused(
    workflow: nvt.Workflow, plan: TransformPlan, tmp_path: Path, load: Any
) -> None:
    fewer = replace(plan, columns=plan.columns[:2])
    with pytest.raises(ArtifactError, match="'tags__.*the workflow makes .*They do not match"):
        check_parity(workflow, fewer, load(tmp_path / "m"), HELDOUT)


def test_awkward_rows_fit_the_type_of_the_column(plan: TransformPlan) -> None:
    narrow = replace(plan, inputs=(TensorSpec(name="user", dtype="int32"), TensorSpec(name="item", dtype="int64")))
    rows = awkward_rows(narrow, HELDOUT)
    assert rows["user"].dtype == "int32"
    assert len(rows["user"]) == len(rows["item"]) > len(HELDOUT)
    assert rows["item"].min() == np.iinfo(np.int64).min
    narrow.run(rows)
