"""Columns that a request may leave out: which they are, and that leaving out is lacking."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rankline.serving.client import ModelSchema
from rankline.serving.client.request_builder import check
from rankline.serving.engines import Engine
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.exporter import optional_columns
from rankline.serving.export.triton_version import Served, write_version
from rankline.workflows.core.errors import RequestError
from rankline.workflows.plan import ANY_WIDTH, Column, ColumnSpec, Computed, KeyIndex, TransformPlan, tensor_call


def plan_of() -> TransformPlan:
    """A text with a row for what is missing, a number that goes through as it is, and a list."""
    return TransformPlan(
        inputs=(
            ColumnSpec(name="word", dtype="object"),
            ColumnSpec(name="key", dtype="int64"),
            ColumnSpec(name="price", dtype="float32"),
            ColumnSpec(name="tags", dtype="int64", width=ANY_WIDTH),
        ),
        indexes=(
            KeyIndex.build("word", pa.array([b"a"], pa.large_binary()), 2, missing_row=1),
            KeyIndex.build("key", np.array([5, 6]), 2, missing_row=1),
        ),
        columns=(
            Column(name="word", index=0, values=np.array([70, 80, 90])),
            Column(name="key", index=1, values=np.array([7, 8, 9, 10])),
            Computed(name="price", source="price", dtype="float32"),
            Computed(name="tags", source="tags", dtype="int64", width=ANY_WIDTH),
        ),
    )


HELDOUT = pa.table(
    {
        "word": pa.array(["a", None], pa.large_string()),
        "key": pa.array([5, 6]),
        "price": pa.array([1.0, None], pa.float32()),
        "tags": pa.array([[1], None], pa.list_(pa.int64())),
    }
)


def test_what_no_row_lacks_and_what_would_reach_the_model_stays_required() -> None:
    plan = plan_of()
    assert optional_columns(plan, HELDOUT, [], []) == ("word",)
    assert optional_columns(plan, HELDOUT, ["word"], []) == ()
    assert optional_columns(plan, HELDOUT, [], ["word"]) == ()
    lacking = HELDOUT.set_column(1, "key", pa.array([5, None]))
    assert optional_columns(plan, lacking, [], []) == ("word", "key")


def test_a_column_that_is_left_out_is_missing_in_every_row() -> None:
    call = tensor_call(plan_of())
    rest = {
        "price": np.ones((2, 1), np.float32),
        "tags__values": np.array([[3], [4]]),
        "tags__nnzs": np.ones((2, 1), np.int32),
    }
    made = call(rest)
    nothing = {
        "word": np.array([[b"a"], [b"a"]], object),
        "word__valid": np.zeros((2, 1), np.bool_),
        "key": np.array([[5], [6]]),
        "key__valid": np.zeros((2, 1), np.bool_),
    }
    said = call({**rest, **nothing})
    assert made["word"].tolist() == said["word"].tolist() == [[80], [80]]
    assert made["key"].tolist() == said["key"].tolist() == [[8], [8]]
    with pytest.raises(RequestError, match="has no column, expected some of"):
        call({})


def test_a_float_that_is_left_out_is_nan_and_a_list_is_missing() -> None:
    call = tensor_call(plan_of())
    with pytest.raises(RequestError, match="'tags' is missing, first in row 0"):
        call({"price": np.ones((1, 1), np.float32)})
    lists = {"tags__values": np.array([[3]]), "tags__nnzs": np.ones((1, 1), np.int32)}
    assert np.isnan(call(lists)["price"]).all()


def test_the_config_and_the_client_know_what_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "model.x").write_text("")
    served = Served(engine=Engine(name="x", package="x", format="model.x"), path=tmp_path / "model.x")
    *_, whole = write_version(
        tmp_path / "new", plan_of(), served, ExportConfig(), name="m", version=1, optional=["word", "tags"]
    )
    schema = ModelSchema.from_config(whole.to_protobuf())
    assert {column.name: column.is_required for column in schema.columns} == {
        "key": True, "price": True, "word": False, "tags": False,
    }  # fmt: skip
    (word, tags) = (next(c for c in schema.columns if c.name == name) for name in ("word", "tags"))
    assert word.mask is not None
    assert tags.lengths is not None
    check({"key": [1], "price": [1.0]}, schema)
    check({"key": [1], "price": [1.0], "word": [None], "tags": [[1, 2]]}, schema)
    with pytest.raises(RequestError, match=r"missing \['price'\]"):
        check({"key": [1], "word": ["a"]}, schema)


@pytest.mark.parametrize(
    ("fused", "optional", "num_steps"), [(None, (), 1), (None, ("word",), 2), (True, ("word",), 1), (False, (), 2)]
)
def test_the_model_is_a_step_of_its_own_where_rows_lack_values(
    fused: bool | None, optional: tuple[str, ...], num_steps: int, tmp_path: Path
) -> None:
    (tmp_path / "model.x").write_text("")
    served = Served(engine=Engine(name="x", package="x", format="model.x"), path=tmp_path / "model.x")
    config = ExportConfig(fused=fused)
    *steps, _ = write_version(tmp_path / "new", plan_of(), served, config, name="m", version=1, optional=optional)
    assert len(steps) == num_steps
    assert config.settled(optional, 3).fused == (num_steps == 1)


@pytest.mark.parametrize("fused", [True, False])
def test_requests_wait_for_others_at_the_model_alone(fused: bool, tmp_path: Path) -> None:
    (tmp_path / "model.x").write_text("")
    served = Served(engine=Engine(name="x", package="x", format="model.x"), path=tmp_path / "model.x")
    config = ExportConfig(fused=fused, batch_delay_ms=0.5)
    *steps, _ = write_version(tmp_path / "new", plan_of(), served, config, name="m", version=1)
    delays_us = [step.to_protobuf().dynamic_batching.max_queue_delay_microseconds for step in steps]
    assert delays_us == ([500] if fused else [0, 500])


def test_rows_without_any_column_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.x").write_text("")
    served = Served(engine=Engine(name="x", package="x", format="model.x"), path=tmp_path / "model.x")
    plan = plan_of()
    names = [spec.name for spec in plan.inputs]
    *_, whole = write_version(tmp_path / "new", plan, served, ExportConfig(), name="m", version=1, optional=names)
    schema = ModelSchema.from_config(whole.to_protobuf())
    with pytest.raises(RequestError, match="have no column for model 'm'. Expected some of"):
        check({}, schema)
