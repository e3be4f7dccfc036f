"""Who is recommended what, and from where the columns of a request come."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.scoring.recommend import best_items, check_context, context_of, typed_user
from rankline.serving.client import Client, ModelSchema
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.preprocess.prepared_data import CATALOG, HISTORIES, KIND, PreparedData
from rankline.workflows.schema.feature_spec import FILE_NAME, Feature, FeatureSpec, SpecMetadata
from rankline.workflows.schema.tensors import Tensor
from rankline.workflows.storage.artifacts import publish


def schema(dtype: str) -> ModelSchema:
    return ModelSchema(
        name="m",
        inputs=(Tensor(name="user", dtype=dtype, dims=(1,)),),
        outputs=(Tensor(name="score", dtype="float32", dims=(1,)),),
        max_batch_size=8,
    )


@pytest.mark.parametrize(
    ("user", "dtype", "expected"), [("1", "int64", 1), (1, "int64", 1), ("A2IB", "object", "A2IB"), (1, "object", "1")]
)
def test_users_are_numbers_or_texts_as_the_ensemble_says(user: int | str, dtype: str, expected: int | str) -> None:
    assert typed_user(user, schema(dtype), "user") == expected
    with pytest.raises(ConfigError, match="user is 'A2IB', but users of this ensemble are whole numbers"):
        typed_user("A2IB", schema("int64"), "user")


class Scores:
    """A `Transport` that adds up the numbers of each row."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self.asked: list[dict[str, Any]] = []

    async def describe(self, *_: Any) -> Any:
        return self._config

    def encode(self, _: ModelSchema, tensors: Any) -> Mapping[str, Any]:
        return {tensor.schema.name: tensor for tensor in tensors}

    async def infer(self, message: Mapping[str, Any], _: float) -> Any:
        arrays = {name: np.asarray(tensor.values.tolist()).reshape(tensor.shape) for name, tensor in message.items()}
        self.asked.append(arrays)
        return sum(array for array in arrays.values() if array.dtype.kind in "if")

    def decode(self, response: Any, _: Tensor) -> Any:
        return np.asarray(response, np.float32)

    async def close(self) -> None:
        pass


INPUTS = {"user": "int64", "item": "int64", "price": "float32", "country": "object", "hour": "int64"}


def client_of(inputs: Mapping[str, str], optional: tuple[str, ...] = ()) -> tuple[Client, Scores]:
    from rankline.serving.triton.config import ModelConfig

    config = ModelConfig(
        name="shop",
        backend="none",
        inputs=tuple(Tensor(name=name, dtype=dtype, optional=name in optional) for name, dtype in inputs.items()),
        outputs=(Tensor(name="score", dtype="float32"),),
        max_batch_size=100,
    ).to_protobuf()
    scores = Scores(config)
    return Client("none", "shop", transport=scores), scores


def prepared_at(path: Path, catalog: pa.Table, histories: pa.Table | None = None) -> PreparedData:
    metadata = SpecMetadata(inputs=tuple(INPUTS), group_by="user", item="item")
    spec = FeatureSpec(
        features=(
            Feature(name="user", dtype="int64", cardinality=9, embedding_dim=2),
            Feature(name="label", dtype="float32"),
        ),
        channels={"categorical": ("user",), "label": ("label",)},
        metadata=metadata,
    )
    with publish(path, KIND, details={}) as staging:
        (staging / FILE_NAME).write_text(spec.to_yaml(), encoding="utf-8")
        pq.write_table(catalog, staging / CATALOG)
        if histories is not None:
            pq.write_table(histories, staging / HISTORIES)
    return PreparedData.load(path)


CATALOGUE = pa.table({"item": [1, 2, 3], "price": pa.array([10.0, 30.0, 20.0], pa.float32()), "title": ["a", "b", "c"]})


def test_further_columns_come_from_the_catalogue_and_from_the_context(tmp_path: Path) -> None:
    prepared, (client, scores) = prepared_at(tmp_path / "prepared", CATALOGUE), client_of(INPUTS)
    best = best_items(client, prepared, 7, 2, context={"country": "DE", "hour": 17})
    assert [(row["item"], row["title"], row["score"]) for row in best] == [
        (2, "b", 7 + 2 + 30 + 17),
        (3, "c", 7 + 3 + 20 + 17),
    ]
    (asked,) = scores.asked
    assert {name: array.reshape(-1).tolist() for name, array in asked.items()} == {
        "user": [7, 7, 7],
        "item": [1, 2, 3],
        "price": [10, 30, 20],
        "country": [b"DE"] * 3,
        "hour": [17] * 3,
    }
    best = best_items(client, prepared, 7, 1, context={"country": "DE", "hour": 0, "price": 0.0})
    assert [(row["item"], row["score"]) for row in best] == [(3, 10)]  # the context goes before the catalogue


def test_known_items_are_recommended_on_demand_only(tmp_path: Path) -> None:
    owned = pa.table({"user": [7, 8], "item": [[2, 2], [1, 2, 3]]})
    prepared = prepared_at(tmp_path / "prepared", CATALOGUE, owned)
    client, _ = client_of({"user": "int64", "item": "int64"})

    def offered(user: int, **choices: Any) -> list[int]:
        return [row["item"] for row in best_items(client, prepared, user, 3, **choices)]

    assert offered(7) == [3, 1]
    assert offered(7, with_known=True) == [3, 2, 1]
    assert offered(8) == []
    said: list[str] = []
    assert offered(9, report=said.append) == [3, 2, 1]
    assert said == ["user 9 is not in the data: these are for a user without a history."]


def test_missing_context_is_asked_for(tmp_path: Path) -> None:
    prepared, (client, _) = prepared_at(tmp_path / "prepared", CATALOGUE), client_of(INPUTS)
    with pytest.raises(ConfigError, match=r"also takes \['country', 'hour'\].*Give --context country=… --context hour"):
        best_items(client, prepared, 7, 1)
    with pytest.raises(ConfigError, match=r"names \['contry'\], expected .*Did you mean 'country' by 'contry'"):
        check_context(prepared, client.schema, ["contry", "hour"])


def test_columns_that_may_be_missing_are_not_asked_for(tmp_path: Path) -> None:
    prepared, (client, scores) = prepared_at(tmp_path / "prepared", CATALOGUE), client_of(INPUTS, ("country", "hour"))
    best_items(client, prepared, 7, 1)
    assert set(scores.asked[0]) == {"user", "item", "price"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("country=DE", {"country": "DE"}),
        ("country=1", {"country": "1"}),
        ("hour=17", {"hour": 17}),
        ("country=a=b", {"country": "a=b"}),
    ],
)
def test_context_is_typed_as_the_model_takes_it(text: str, expected: dict[str, Any]) -> None:
    client, _ = client_of(INPUTS)
    assert context_of([text], client.schema) == expected
    with pytest.raises(ConfigError, match="--context is 'hour', expected a column and its value: --context country=DE"):
        context_of(["hour"], client.schema)
