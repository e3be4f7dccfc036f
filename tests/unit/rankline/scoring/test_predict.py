"""The verbs `predict` and `recommend` in this process, and what they find out before the model is loaded."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import parquet
from typer.testing import CliRunner, Result

from rankline.cli.main import app
from rankline.scoring.read_rows import Block, read_blocks
from rankline.scoring.recommend import best_items, check_context, context_of, typed_user, user_and_item
from rankline.scoring.unseen import mostly_unseen, untrained_classes
from rankline.scoring.write_scores import score_blocks
from rankline.serving.client import Client, ModelSchema
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.in_process import open_ensemble
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.preprocess.prepared_data import CATALOG, HISTORIES, KIND, PreparedData
from rankline.workflows.schema.feature_spec import FILE_NAME, Feature, FeatureSpec, Source, SpecMetadata
from rankline.workflows.schema.targets import Head
from rankline.workflows.schema.tensors import Tensor
from rankline.workflows.storage.artifacts import publish
from tests.factories.ensembles import UNSEEN, publish_tiny
from tests.factories.specs import scalar_spec


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with an ensemble that takes `x`, where nothing may start a server."""

    def start(*_: object, **__: object) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr("rankline.serving.server.embedded.EmbeddedServer", start)
    publish_tiny(tmp_path / "models" / "movielens", 10)
    return tmp_path / "models"


def predict(repository: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["predict", "--repository", str(repository), *map(str, arguments)])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["--X", "3"], r"missing columns ['x'] for model 'tiny'. Expected ['x'], got ['X']. Did you mean 'x' by 'X'?"),
        (["--x", "3", "--y", "4"], "unknown columns ['y'] for model 'tiny'. Expected only ['x']."),
        (["--x", "three"], "'x' has values of type string, expected INT64"),
    ],
)
def test_row_that_does_not_fit_is_refused_before_loading(repository: Path, row: list[str], message: str) -> None:
    done = predict(repository, *row)
    assert done.exit_code == 1
    assert message in done.output


def test_file_that_does_not_fit_is_refused_before_the_model_is_loaded(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("X,label\n1,0\n")
    output = predict(repository, "--input", tmp_path / "rows.csv").output
    assert "the rows are missing columns ['x']. Expected ['x'], got ['X', 'label']. Did you mean 'x' by 'X'?" in output
    (tmp_path / "rows.csv").write_text("x\n1.5\n")
    assert "'x' cannot be converted to INT64" in predict(repository, "--input", tmp_path / "rows.csv").output
    (tmp_path / "rows.csv").write_text("x,x\n1,2\n")
    assert "column 'x' appears twice in the rows" in predict(repository, "--input", tmp_path / "rows.csv").output
    assert f"{tmp_path} is a directory, expected a file" in predict(repository, "--input", tmp_path).output


def test_bytes_of_a_file_do_not_reach_the_terminal(repository: Path, tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "rows.csv")
    output = predict(repository, "--input", tmp_path / "rows.csv").output
    assert output.startswith("Error: ")
    assert output.count("\n") == 1
    assert output.strip().isprintable()


@pytest.mark.parametrize("format_name", ["csv", "jsonl"])
def test_rows_of_any_number_are_scored_in_this_process(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    monkeypatch.setattr("rankline.scoring.read_rows._BLOCK_BYTES", 100)
    monkeypatch.setattr("rankline.scoring.read_rows._BLOCK_ROWS", 30)
    monkeypatch.setattr("rankline.scoring.write_scores._ROWS_AT_ONCE", 7)
    (tmp_path / "rows.csv").write_text("name,x\n" + "".join(f"n{i},{i % 6}\n" for i in range(100)))
    output = tmp_path / f"scored.{format_name}"
    done = predict(repository, "--input", tmp_path / "rows.csv", "--output", output)
    assert done.exit_code == 0, done.output
    assert f"scoring in this process: {repository / 'movielens'}, version 1" in done.stderr
    assert "100 rows" in done.stderr
    scored = pa.concat_tables([rows for rows, _ in read_blocks(output, format_name)])
    assert scored["name"].to_pylist() == [f"n{i}" for i in range(100)]
    assert scored["score"].to_pylist() == [i % 6 + 10 if i % 6 < 5 else UNSEEN for i in range(100)]


@pytest.mark.parametrize(("rows", "warns"), [("7\n-1\n8\n", True), ("7\n3\n", False), ("3\n", False)])
def test_file_of_unseen_values_is_scored_with_a_warning(
    repository: Path, tmp_path: Path, rows: str, warns: bool
) -> None:
    (tmp_path / "rows.csv").write_text(f"x\n{rows}")
    done = predict(repository, "--input", tmp_path / "rows.csv")
    assert done.exit_code == 0, done.output
    assert (
        "Warning: in the first rows, 100% of 'x' are values that were absent or too rare in the training data"
        in done.stderr
    ) == warns


def test_score_that_is_no_number_is_null_in_json_and_named(repository: Path, tmp_path: Path) -> None:
    publish_tiny(repository / "movielens", float("nan"))
    (tmp_path / "rows.csv").write_text("x,y\n7,1\n3,inf\n4,2\n")
    done = predict(repository, "--input", tmp_path / "rows.csv", "--format", "jsonl")
    assert [json.loads(line, parse_constant=pytest.fail) for line in done.stdout.splitlines()] == [
        {"x": 7, "y": 1.0, "score": UNSEEN},
        {"x": 3, "y": None, "score": None},
        {"x": 4, "y": 2.0, "score": None},
    ]
    assert "Warning: the score is NaN in 2 of 3 rows, first in row 2:" in done.stderr


def test_predict_scores_one_row_in_process(repository: Path) -> None:
    done = predict(repository, "--x", "3")
    assert json.loads(done.stdout) == {"x": 3, "score": 13}
    assert predict(repository, "--x", "3", "--output", "-").stdout == done.stdout
    assert predict(repository, "--x", "3", "--rating", "5").stdout == done.stdout  # the label, which files may have too


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--x", "3", "--output", "."], ". is a directory, expected a file such as result.jsonl"),
        (["--x", "3", "--output", ".", "--format", "csv"], ". is a directory, expected a file such as result.csv"),
        (["movielens@1", "--x", "3"], "uses the active version. Pass movielens, or first activate version 1: rankline"),
    ],
)
def test_places_and_versions_that_cannot_be_used_are_refused(
    repository: Path, arguments: list[str], message: str
) -> None:
    done = predict(repository, *arguments)
    assert done.exit_code == 1
    assert message in " ".join(done.output.split())


def test_late_rows_that_do_not_fit_leave_no_file(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankline.scoring.read_rows._BLOCK_BYTES", 10)
    (tmp_path / "rows.csv").write_text("x\n" + "1\n" * 50 + "1.5\n")
    done = predict(repository, "--input", tmp_path / "rows.csv", "--output", tmp_path / "scored.csv")
    assert done.exit_code == 1
    assert "'x' cannot be converted to INT64" in done.output
    assert not (tmp_path / "scored.csv").exists()


def test_blocks_are_not_read_far_ahead_of_those_that_are_taken(repository: Path) -> None:
    num_read = 0

    def blocks() -> Iterator[Block]:
        nonlocal num_read
        while True:
            num_read += 1
            yield Block(rows=pa.table({"x": [1, 2]}), sent=pa.table({"x": [1, 2]}))

    with open_ensemble(ExportedEnsemble.load(repository / "movielens")) as client:
        scored = score_blocks(client, blocks())
        for number in range(1, 6):
            rows, scores = next(scored)
            assert (rows.num_rows, scores.tolist()) == (2, [11, 12])
            assert num_read - number <= 2
        scored.close()  # type: ignore[attr-defined]  # a generator, which would wait for its threads at the end


def test_column_of_few_categories_that_are_new_to_most_validation_rows_is_named(tmp_path: Path) -> None:
    rows = {"C0": [2, 2, 2, 3], "C1": [2, 2, 3, 3], "C2": [2, 2, 2, 2]}
    pq.write_table(pa.table(rows), tmp_path / "valid.parquet")
    source = Source(files=("valid.parquet",), num_rows=4)
    spec = replace(scalar_spec([(15, 4), (15, 4), (1000, 4)], 0), sources={"valid": source})
    any_manifest: Any = None
    assert mostly_unseen(PreparedData(path=tmp_path, spec=spec, manifest=any_manifest)) == {"C0": 0.75}


def test_classes_that_no_training_row_has_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": pa.array([0.0, 2.0, 0.0], pa.float32())}), tmp_path / "train.parquet")
    source = Source(files=("train.parquet",), num_rows=3)
    head = Head("label", task="multiclass", classes=("low", "middle", "high", "top"))
    spec = replace(scalar_spec([(15, 4)], 0), sources={"train": source})
    spec = replace(spec, metadata=replace(spec.metadata, heads=(head,)))
    any_manifest: Any = None
    prepared = PreparedData(path=tmp_path, spec=spec, manifest=any_manifest)
    assert untrained_classes(prepared) == {"label": ["middle", "top"]}


def schema(dtype: str) -> ModelSchema:
    return ModelSchema(
        name="m",
        inputs=(Tensor(name="user", dtype=dtype, dims=(1,)),),
        outputs=(Tensor(name="score", dtype="float32", dims=(1,)),),
        max_batch_size=8,
    )


@pytest.mark.parametrize(
    ("user", "dtype", "expected"), [("1", "int64", 1), ("A2IB", "object", "A2IB"), (1, "object", "1")]
)
def test_users_are_numbers_or_texts_as_the_ensemble_says(user: int | str, dtype: str, expected: int | str) -> None:
    assert typed_user(user, schema(dtype), "user") == expected
    with pytest.raises(ConfigError, match="user is 'A2IB', but this ensemble requires integer user"):
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


def prepared_at(
    path: Path, catalog: pa.Table, histories: pa.Table | None = None, *, item: str | None = "item"
) -> PreparedData:
    metadata = SpecMetadata(inputs=tuple(INPUTS), group_by="user", item=item)
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
    assert said == ["user 9 is not in the data: these items are for a user without a history."]


def test_recommend_names_what_the_data_lacks(tmp_path: Path) -> None:
    prepared = prepared_at(tmp_path / "prepared", CATALOGUE, item=None)
    with pytest.raises(ConfigError, match="has no item column, which `recommend` requires. Use `predict`"):
        user_and_item(prepared)


def test_missing_context_is_asked_for(tmp_path: Path) -> None:
    prepared, (client, _) = prepared_at(tmp_path / "prepared", CATALOGUE), client_of(INPUTS)
    with pytest.raises(ConfigError, match=r"requires \['country', 'hour'\].*Pass --context country=… --context hour"):
        best_items(client, prepared, 7, 1)
    with pytest.raises(ConfigError, match=r"contains \['contry'\], expected .*Did you mean 'country' by 'contry'"):
        check_context(prepared, client.schema, ["contry", "hour"])


def test_columns_that_may_be_missing_are_not_asked_for(tmp_path: Path) -> None:
    prepared, (client, scores) = prepared_at(tmp_path / "prepared", CATALOGUE), client_of(INPUTS, ("country", "hour"))
    best_items(client, prepared, 7, 1)
    assert set(scores.asked[0]) == {"user", "item", "price"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("country=DE", {"country": "DE"}), ("hour=17", {"hour": 17}), ("country=a=b", {"country": "a=b"})],
)
def test_context_is_typed_as_the_model_takes_it(text: str, expected: dict[str, Any]) -> None:
    client, _ = client_of(INPUTS)
    assert context_of([text], client.schema) == expected
    with pytest.raises(
        ConfigError, match="--context is 'hour', expected a column and its value, such as --context country=DE"
    ):
        context_of(["hour"], client.schema)
