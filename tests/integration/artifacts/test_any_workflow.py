"""Any NVTabular workflow, not a dataset of ours: strings, numbers, booleans and lists, exported and asked over gRPC."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.client import Client
from rankline.serving.engines.tensorflow.offline import Model
from rankline.serving.export.config import NATIVE, PYTHON, ExportConfig
from rankline.serving.export.exporter import export_ensemble
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.serving.server.supervisor import config_of
from rankline.workflows.core.errors import RequestError
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.operators import HashedCategorify, NullToEmptyList
from rankline.workflows.preprocess.dataset import Dataset
from rankline.workflows.preprocess.prepare import prepare
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.schema.targets import Head
from rankline.workflows.schema.tensor_names import NNZS, OFFSETS, PADDED_SIGNATURE, RAGGED_SIGNATURE, SCORE, VALUES
from tests.factories.training.trained_models import publish_saved_model
from tests.oracles.tolerance import SCORE_ROUNDING

from merlin.dag import Graph  # isort: skip

INPUTS = ("city", "price", "stock", "item", "visits", "member", "tags", "history")
LISTS = ("tags", "history")
NULLABLE = ("city", "visits", "member", "history")
"""Columns in which a request may lack a value, beside the floats."""
WORDS = ["Oslo", "Zürich", "東京", "", "a\0b", "long " * 40]


def raw_data(num_rows: int = 400) -> RawData:
    """Rows of every type, some values missing, and the label last."""
    rng = np.random.default_rng(7)
    missing = rng.random((2, num_rows)) < 0.1
    rows = pa.table(
        {
            "city": pa.array(rng.choice(WORDS, num_rows), pa.string(), mask=missing[0]),
            "price": pa.array(rng.normal(20, 30, num_rows), mask=missing[1]),
            "stock": rng.integers(-5, 100, num_rows),
            "item": rng.integers(0, 50, num_rows) * 2**40,
            "visits": rng.integers(0, 9, num_rows),
            "member": rng.random(num_rows) < 0.5,
            "tags": [list(rng.choice(WORDS, n)) for n in rng.integers(0, 4, num_rows)],
            "history": [rng.integers(0, 9, n).tolist() for n in rng.integers(0, 5, num_rows)],
            "label": rng.integers(0, 2, num_rows).astype(np.float32),
            "time": np.arange(num_rows),
        }
    )
    return RawData(rows=rows, catalog=rows.select(["item"]), fingerprint="of this test")


def graph(*_: Any) -> nvt.Workflow:
    price = ["price"] >> ops.FillMissing(0, add_binary_cols=True)
    numbers = price["price"] >> ops.Clip(min_value=0) >> ops.LogOp() >> ops.Normalize(out_dtype=np.float32)
    ids = ["city", "tags"] >> ops.Categorify(dtype=np.int32)
    ids += ["history"] >> NullToEmptyList() >> ops.Categorify(dtype=np.int32)
    ids += ["item"] >> HashedCategorify(num_buckets=3, freq_threshold=8)
    filled = (["visits"] >> ops.FillMedian(add_binary_cols=True)) + (["member"] >> ops.FillMissing(1))
    bins = ["stock"] >> ops.Normalize()
    targets = [["city"]] >> ops.TargetEncoding("label", kfold=3, out_dtype="float32")
    return nvt.Workflow(ids + numbers + (price["price_filled"]) + filled + bins + targets + ["label"])


DATASET = Dataset(
    name="any",
    read=lambda _: raw_data(),
    graph=graph,
    inputs=INPUTS,
    heads=(Head("label"),),
    time="time",
    group_by="city",
    item="item",
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return prepare(DATASET, raw_data(), tmp_path_factory.mktemp("any") / "prepared", source="a test")


@pytest.fixture(scope="module")
def trained(prepared: PreparedData) -> TrainedModel:
    """Adds up what the workflow makes: no model, but every value and length of every column shows in its score."""
    features = [feature for feature in prepared.spec.features if feature.name != "label"]

    def score(totals: list[Any]) -> dict[str, Any]:
        return {SCORE: tf.sigmoid(tf.add_n([0.01 * (i + 1) * total for i, total in enumerate(totals)]))[:, None]}

    def padded(**inputs: Any) -> dict[str, Any]:
        lengths = [tf.cast(inputs[name + NNZS][:, 0], tf.float32) for name in LISTS]
        values = [inputs[f.name + VALUES if f.is_list else f.name] for f in features]
        return score([*(tf.reduce_sum(tf.cast(column, tf.float32), axis=1) for column in values), *lengths])

    def ragged(**inputs: Any) -> dict[str, Any]:
        lists = {n: tf.RaggedTensor.from_row_splits(inputs[n + VALUES], inputs[n + OFFSETS]) for n in LISTS}
        lengths = [tf.cast(lists[name].row_lengths(), tf.float32) for name in LISTS]
        values = [lists.get(f.name, inputs.get(f.name)) for f in features]
        totals = [tf.cast(column, tf.float32) for column in values]
        return score([*(tf.reduce_sum(t, axis=1) if t.shape.rank == 2 else t for t in totals), *lengths])

    def specs(width: tuple[Any, ...], list_width: tuple[Any, ...], lengths: str, shape: tuple[Any, ...]) -> Any:
        tensors = {f.name: tf.TensorSpec((None, *width), f.dtype) for f in features if not f.is_list}
        for f in features:
            if f.is_list:
                tensors[f.name + VALUES] = tf.TensorSpec((None, *list_width), f.dtype)
                tensors[f.name + lengths] = tf.TensorSpec((None, *shape), tf.int32)
        return tensors

    signatures = {
        RAGGED_SIGNATURE: tf.function(ragged).get_concrete_function(**specs((), (), OFFSETS, ())),
        PADDED_SIGNATURE: tf.function(padded).get_concrete_function(**specs((1,), (None,), NNZS, (1,))),
    }
    return publish_saved_model(prepared, tf.Module(), signatures)


@pytest.fixture(scope="module")
def ensemble(prepared: PreparedData, trained: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Any:
    output = tmp_path_factory.mktemp("repository") / "any"
    return export_ensemble(prepared, trained, output, ExportConfig(max_batch_size=64, fused=True), name="any")


@pytest.fixture(scope="module")
def client(ensemble: ExportedEnsemble) -> Iterator[Client]:
    config = ServerConfig(repositories=(ensemble.path,))
    with EmbeddedServer(config) as server, Client(server.endpoints.grpc, "any") as connected:
        yield connected


@pytest.fixture(scope="module")
def rows(prepared: PreparedData) -> pa.Table:
    """Held-out rows, and one of what no row of training had."""
    heldout = prepared.heldout().select(INPUTS)
    unseen = {
        "city": "never", "price": 1e308, "stock": -(2**63), "item": 5, "visits": -1, "member": True,
        "tags": ["never", ""], "history": [],
    }  # fmt: skip
    return pa.concat_tables([heldout, pa.Table.from_pylist([unseen], heldout.schema)])


@pytest.fixture(scope="module")
def score_offline(prepared: PreparedData, trained: TrainedModel) -> Callable[[pa.Table], Any]:
    """The scores of NVTabular and the SavedModel in this process, targets encoded by the statistics of all rows."""
    workflow = prepared.workflow()
    for node in Graph.get_nodes_by_op_type([workflow.output_node], ops.TargetEncoding):
        node.op.kfold = 1
    dtypes = {feature.name: feature.dtype for feature in prepared.spec.features if not feature.is_list}
    model = Model(trained.model_path)

    def score(rows: pa.Table) -> Any:
        with quiet_nvtabular(), np.errstate(over="ignore"):  # the largest price
            encoded = workflow.transform(rows.to_pandas().assign(label=np.float32(0)))
        return model.score_offline(encoded.astype(dtypes).drop(columns="label"))  # wider where a value is missing

    return score


@pytest.fixture(scope="module")
def expected(score_offline: Callable[[pa.Table], Any], rows: pa.Table) -> Any:
    return score_offline(rows)


def test_export_compares_all_types(ensemble: ExportedEnsemble) -> None:
    parity = ensemble.manifest.details["parity"]
    assert parity["num_rows"] > 100
    assert parity["num_left_out"] == 0
    assert parity["nulls_not_compared"] == ["tags"]
    assert parity["largest_score_difference"] < 1e-5


def test_served_scores_equal_offline_ones(client: Client, rows: pa.Table, expected: Any) -> None:
    for columns in (rows, rows.to_pandas(), {name: rows[name].to_pylist() for name in INPUTS}):
        scores = client.predict(columns)
        np.testing.assert_allclose(scores, expected, atol=SCORE_ROUNDING)
    assert len(np.unique(scores)) > 40


def test_single_rows_and_batched_requests_agree(client: Client, rows: pa.Table, expected: Any) -> None:
    requests: list[Any] = [rows.slice(i, 1) for i in range(rows.num_rows)]
    assert requests[-1]["history"].to_pylist() == [[]]
    last = {name: requests[-1][name] for name in INPUTS if name != "history"}
    requests[-1] = last | {"history__values": np.zeros((1, 0), np.int64), "history__nnzs": [0]}
    with ThreadPoolExecutor(8) as pool:
        scores = list(pool.map(client.predict, requests))
    np.testing.assert_allclose(np.concatenate(scores), expected, atol=SCORE_ROUNDING)


missing = st.sets(st.sampled_from(NULLABLE))


@given(lacking=st.lists(st.tuples(st.integers(0, 50), missing), min_size=1, max_size=8))
def test_missing_values_are_served_as_nvtabular_transforms_them(
    client: Client, rows: pa.Table, score_offline: Callable[[pa.Table], Any], lacking: list[tuple[int, set[str]]]
) -> None:
    drawn = [
        {name: None if name in names else value for name, value in rows.slice(i, 1).to_pylist()[0].items()}
        for i, names in lacking
    ]
    complete = rows.filter(pa.array([None not in row.values() for row in rows.to_pylist()])).slice(0, 1)
    # NVTabular cannot encode a batch that lacks a column whole.
    table = pa.concat_tables([pa.Table.from_pylist(drawn, rows.schema), complete])
    offline = score_offline(table)
    np.testing.assert_allclose(client.predict(table), offline, atol=SCORE_ROUNDING)
    np.testing.assert_allclose(client.predict(table.to_pandas()), offline, atol=SCORE_ROUNDING)


def test_request_refused_by_the_workflow_fails_alone(client: Client, rows: pa.Table, expected: Any) -> None:
    def ask(i: int) -> Any:
        request: dict[str, Any] = {name: rows.slice(i, 1)[name] for name in INPUTS}
        if i % 4 == 0:
            del request["history"]
            request |= {"history__values": [[1, 2]], "history__nnzs": [9]}
        try:
            return client.predict(request).tolist()
        except RequestError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(16)))
    for i, answer in enumerate(answers):
        if i % 4 == 0:
            assert "the ensemble could not run the request: lengths of 'history' do not match its shape" in answer
        else:
            assert answer == pytest.approx([expected[i]], abs=SCORE_ROUNDING)


ONE_STEP, TWO_STEPS = ("any_score_v1",), ("any_transform_v1", "any_predict_v1")


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "steps"), [(NATIVE, TWO_STEPS), (PYTHON, ONE_STEP)])
def test_steps_and_runtimes_answer_the_same(
    prepared: PreparedData,
    trained: TrainedModel,
    tmp_path: Path,
    client: Client,
    rows: pa.Table,
    backend: str,
    steps: tuple[str, ...],
) -> None:
    config = ExportConfig(max_batch_size=64, fused=steps == ONE_STEP, backend=backend)
    other = export_ensemble(prepared, trained, tmp_path / "any", config, name="any")
    assert other.steps == steps
    with EmbeddedServer(config_of(other)) as server, Client(server.endpoints.grpc, "any") as of_other:
        assert of_other.schema == client.schema
        np.testing.assert_array_equal(of_other.predict(rows), client.predict(rows))
        request: dict[str, Any] = {name: rows.slice(0, 1)[name] for name in INPUTS if name != "history"}
        with pytest.raises(RequestError, match="lengths of 'history' .*do not match"):
            of_other.predict(request | {"history__values": [[1, 2]], "history__nnzs": [9]})
