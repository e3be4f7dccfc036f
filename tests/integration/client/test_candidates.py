"""Many candidates for one history in one request: exported, served, joined with others, and ranked by clients."""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from rankline.serving.client import AsyncClient, Client, ClientConfig, PreparedRequest
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.exporter import export_ensemble
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.embedded import EmbeddedServer
from rankline.serving.server.supervisor import config_of
from rankline.workflows.core.errors import RequestError
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in, save_workflow
from rankline.workflows.nvt.operators import NullToEmptyList
from rankline.workflows.preprocess.partitions import file_name
from rankline.workflows.preprocess.prepared_data import HELDOUT, KIND, PreparedData
from rankline.workflows.schema.feature_spec import (
    FILE_NAME,
    HISTORY,
    LABEL,
    TARGET,
    USERS,
    Feature,
    FeatureSpec,
    SpecMetadata,
)
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.schema.tensor_names import PADDED_SIGNATURE, RAGGED_SIGNATURE, SCORE
from rankline.workflows.storage.artifacts import publish
from tests.factories.training.trained_models import publish_saved_model
from tests.oracles.tolerance import SCORE_ROUNDING

NUM_IDS, LATEST = 64, 5
ITEMS = [f"é{number}" for number in range(40)]
USERS_KNOWN = [f"u{number}" for number in range(8)]
CONFIG_OF_TEST = ExportConfig(max_batch_size=512, max_list_length=300, instances=1, threads=1)


def interactions(num_rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "user_id": rng.choice(USERS_KNOWN, num_rows),
            "item_id": rng.choice(ITEMS, num_rows),
            "history": [rng.choice(ITEMS, length).tolist() for length in rng.integers(0, 12, num_rows)],
        }
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """Prepared data as histories make it, with separate vocabularies for items and histories."""
    path = tmp_path_factory.mktemp("candidates") / "prepared"
    an_id: Any = {"dtype": "int64", "cardinality": NUM_IDS, "embedding_dim": 8}
    spec = FeatureSpec(
        features=(
            Feature(name="label", dtype="float32"),
            Feature(name="user_id", **an_id),
            Feature(name="item_id_trgt", **an_id),
            Feature(name="item_id_pos", is_list=True, max_length=LATEST, **an_id),
        ),
        channels={LABEL: ("label",), USERS: ("user_id",), TARGET: ("item_id_trgt",), HISTORY: ("item_id_pos",)},
        metadata=SpecMetadata(
            inputs=("user_id", "item_id", "history"),
            group_by="user_id",
            item="item_id",
            candidates=("item_id",),
            history="history",
        ),
    )
    rows = interactions(300, seed=1)
    with publish(path, KIND) as directory, quiet_nvtabular():
        latest = ["history"] >> NullToEmptyList() >> ops.ListSlice(-LATEST) >> ops.Rename(name="item_id_pos")
        item = ["item_id"] >> ops.Rename(name="item_id_trgt")
        ids = [columns >> ops.Categorify() for columns in (["user_id"], item, latest)]
        workflow = nvt.Workflow(ids[0] + ids[1] + ids[2])
        keep_vocabularies_in(workflow, directory / "fit")
        workflow.fit(nvt.Dataset(rows))
        save_workflow(workflow, directory / "workflow")
        shutil.rmtree(directory / "fit", ignore_errors=True)
        (directory / FILE_NAME).write_text(spec.to_yaml(), encoding="utf-8")
        heldout = pa.Table.from_pandas(interactions(60, seed=2), preserve_index=False)
        heldout = heldout.append_column("label", pa.array(np.zeros(60, np.float32)))
        (directory / HELDOUT).mkdir()
        pq.write_table(heldout, directory / HELDOUT / file_name(0))
    return PreparedData.load(path)


class Tiny(tf.Module):  # type: ignore[misc]  # tensorflow has no types
    """Scores a target by its product with the user and all of the history."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.users, self.items, self.history = (
            tf.Variable(rng.normal(0, 0.5, (NUM_IDS, 8)), dtype=tf.float32) for _ in range(3)
        )

    def scores(self, user: Any, targets: Any, history: Any) -> Any:
        query = history + tf.gather(self.users, user)
        return {SCORE: tf.sigmoid(tf.einsum("nd,ncd->nc", query, tf.gather(self.items, targets)))}

    def padded(self, user_id: Any, item_id_trgt: Any, item_id_pos__values: Any, item_id_pos__nnzs: Any) -> Any:
        mask = tf.sequence_mask(item_id_pos__nnzs[:, 0], tf.shape(item_id_pos__values)[1], tf.float32)
        history = tf.reduce_sum(tf.gather(self.history, item_id_pos__values) * mask[:, :, None], axis=1)
        return self.scores(user_id[:, 0], item_id_trgt, history)

    def ragged(self, user_id: Any, item_id_trgt: Any, item_id_pos__values: Any, item_id_pos__offsets: Any) -> Any:
        lists = tf.RaggedTensor.from_row_splits(item_id_pos__values, item_id_pos__offsets)
        history = tf.reduce_sum(tf.gather(self.history, lists), axis=1)
        return self.scores(user_id, item_id_trgt[:, None], history)


@pytest.fixture(scope="module")
def trained(prepared: PreparedData) -> TrainedModel:
    tiny = Tiny()

    def ids(*shape: int | None) -> Any:
        return tf.TensorSpec(shape, tf.int64)

    signatures = {
        RAGGED_SIGNATURE: tf.function(tiny.ragged).get_concrete_function(
            ids(None), ids(None), ids(None), tf.TensorSpec((None,), tf.int32)
        ),
        PADDED_SIGNATURE: tf.function(tiny.padded).get_concrete_function(
            ids(None, 1), ids(None, None), ids(None, None), tf.TensorSpec((None, 1), tf.int32)
        ),
    }
    return publish_saved_model(prepared, tiny, signatures)


@pytest.fixture(scope="module")
def ensemble(prepared: PreparedData, trained: TrainedModel) -> ExportedEnsemble:
    return export_ensemble(prepared, trained, prepared.path.with_name("repository"), CONFIG_OF_TEST, name="tiny")


@pytest.fixture(scope="module")
def server(ensemble: ExportedEnsemble) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(config_of(ensemble, http_port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: EmbeddedServer) -> Iterator[Client]:
    with Client(server.endpoints.grpc, "tiny") as connected:
        yield connected


def row_of(number: int) -> dict[str, Any]:
    """Known and unknown users, histories of any length."""
    rng = np.random.default_rng(number)
    history = rng.choice([*ITEMS, "never"], int(rng.integers(0, 30))).tolist()
    return {"user_id": rng.choice([*USERS_KNOWN, "nobody"]), "history": history}


def one_by_one(client: Client, row: dict[str, Any], items: list[str]) -> Any:
    """The scores of a row for each candidate."""
    rows = {name: [value] * len(items) for name, value in row.items()}
    return client.predict(rows | {"item_id": items})


@pytest.mark.parametrize("number", range(4))
def test_rank_scores_each_candidate_as_a_row_of_its_own(client: Client, number: int) -> None:
    items = [*ITEMS, "never seen"]
    scores = client.rank(row_of(number), items)
    np.testing.assert_allclose(scores, one_by_one(client, row_of(number), items), atol=SCORE_ROUNDING)
    assert scores.shape == (len(items),)
    assert len(np.unique(scores)) > 35


def test_predict_takes_a_single_candidate_per_row(client: Client) -> None:
    rows = interactions(20, seed=3)
    scores = client.predict(rows)
    assert scores.shape == (20,)
    wide = rows.assign(item_id=[[item] for item in rows["item_id"]])
    np.testing.assert_array_equal(client.predict(wide), scores)
    for name in ("user_id", "item_id"):
        lacking = rows.assign(**{name: [None if i % 2 else value for i, value in enumerate(rows[name])]})
        alone = np.concatenate([client.predict(lacking.iloc[i : i + 1]) for i in range(20)])
        np.testing.assert_allclose(client.predict(lacking), alone, atol=SCORE_ROUNDING)


def test_predict_takes_rows_of_candidates_beyond_one_request(client: Client) -> None:
    rng = np.random.default_rng(4)
    rows = interactions(9, seed=4).assign(item_id=list(rng.choice(ITEMS, (9, 200))))  # 2 rows of 200 fit into 512
    scores = client.predict(rows)
    assert scores.shape == (9, 200)
    for number, row in enumerate(rows.to_dict("records")):
        items = list(row.pop("item_id"))
        np.testing.assert_allclose(scores[number], client.rank(row, items), atol=SCORE_ROUNDING)


def test_transports_rank_alike(client: Client, server: EmbeddedServer) -> None:
    items: list[Any] = [*ITEMS, None, "never"]
    expected = client.rank(row_of(2), items)
    with Client(server.endpoints.http, "tiny", ClientConfig(transport="http")) as over_http:
        np.testing.assert_array_equal(over_http.rank(row_of(2), items), expected)

    async def ask(url: str, config: ClientConfig) -> Any:
        async with AsyncClient(url, "tiny", config) as asynchronous:
            return await asyncio.gather(*(asynchronous.rank(row_of(2), items[:end]) for end in (1, 17, len(items))))

    for url, transport in ((server.endpoints.grpc, "grpc"), (server.endpoints.http, "http")):
        for scores in asyncio.run(ask(url, ClientConfig(transport=transport))):
            np.testing.assert_allclose(scores, expected[: len(scores)], atol=SCORE_ROUNDING)


def resized(request: PreparedRequest, count: int) -> PreparedRequest:
    """A ranking with another number of candidates than there are scores expected, past the client's checks."""
    (message,) = request.messages
    at = [entry.name for entry in message.inputs].index("item_id")
    message.inputs[at].shape[1] = count
    message.raw_input_contents[at] = message.raw_input_contents[at][: 0 if not count else None]
    return request


def test_server_refuses_no_and_too_many_candidates(client: Client, server: EmbeddedServer) -> None:
    with pytest.raises(RequestError, match="there are no candidates"):
        client.rank(row_of(1), [])
    with pytest.raises(RequestError, match="'item_id' has no candidates, expected at least one per row"):
        client.infer(resized(client.prepare_ranking(row_of(1), ["é1"]), 0))
    with Client(server.endpoints.grpc, "tiny") as unlimited:
        unlimited._core.schema = replace(unlimited.schema, max_list_length=0, max_batch_size=4096)
        with pytest.raises(RequestError, match="'item_id' has 301 candidates per row, expected at most 300"):
            unlimited.rank(row_of(1), ["é1"] * 301)
        with pytest.raises(
            RequestError, match="3 rows have 200 candidates each, expected at most 512 candidates in total"
        ):
            unlimited.predict(interactions(3, seed=5).assign(item_id=[["é1"] * 200] * 3))
