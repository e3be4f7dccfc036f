"""`import rankline`: what it costs, what it takes, and what it says where something is wrong."""

import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import rankline
from rankline.api.data_source import SourceConfig, obtain
from rankline.serving.client import AsyncClient
from rankline.serving.importers.input_binding import Input
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.workflows.core.errors import ArtifactError, ConfigError, DataError, RanklineError
from rankline.workflows.data.movielens.dataset import MOVIELENS
from rankline.workflows.nvt.compat import ops
from tests.factories.ensembles import NAME, publish_tiny
from tests.factories.importable_models import save_saved_model
from tests.oracles.nvtabular import fitted, transformed

ROOT = Path(__file__).parents[4]
FRAME = pd.DataFrame(
    {
        "city": ["Oslo", "Zürich", "東京", None] * 50,
        "age": np.r_[np.nan, np.arange(199) % 60 + 18.0],
        "clicked": np.arange(200) % 3 // 2,
    }
)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> ExportedEnsemble:
    """Trees that were not trained here: no framework but theirs is imported."""
    import lightgbm

    path = tmp_path_factory.mktemp("exported")
    rows = lightgbm.Dataset(FRAME[["age"]], FRAME["clicked"])
    lightgbm.train({"objective": "binary", "num_leaves": 3, "verbose": -1}, rows, 2).save_model(path / "model.txt")
    return rankline.export(
        model=path / "model.txt",
        sample=FRAME,
        name="mine",
        work_dir=path / "work",
        repository=path / "repository",
        progress=False,
    )


def test_package_imports_nothing_heavy() -> None:
    code = "import sys, rankline; dir(rankline); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"pandas", "numpy", "pyarrow", "tensorflow", "nvtabular", "typer"} & set(done.stdout.split()) == set()


def test_public_names_are_listed_and_there() -> None:
    assert set(rankline.__all__) <= set(dir(rankline))
    assert all(getattr(rankline, name).__doc__ for name in rankline.__all__)
    assert rankline.RanklineError is RanklineError
    assert rankline.AsyncClient is AsyncClient
    with pytest.raises(AttributeError, match="'rankline' has no attribute 'prepere'"):
        rankline.prepere  # noqa: B018


def file_of(frame: pd.DataFrame) -> str:
    frame.to_csv("rows.csv", index=False)
    return "rows.csv"


SOURCES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "frame": lambda frame: frame,
    "table": lambda frame: pa.Table.from_pandas(frame),
    "file": file_of,
    "files": lambda frame: [Path(file_of(frame))],
}


@pytest.mark.parametrize("source", SOURCES)
def test_dataset_is_made_of_rows_in_any_form(source: str) -> None:
    data = rankline.Dataset(SOURCES[source](FRAME), label="clicked", name="click-log")
    assert list(data.columns["column"]) == ["clicked", "city", "age"]
    assert list(data.columns["role"]) == ["label", "categorical", "numeric"]
    assert data.columns["why"].str.len().min() > 0
    assert (
        repr(data)
        == f"Dataset(name='click-log', label=['clicked'], file='{Path('work/click-log').absolute()}/rankline.yaml')"
    )
    assert rankline.load_recipe(data.file).name == data.recipe.name == "click-log"


def test_name_that_yaml_takes_for_something_else_stays_a_name() -> None:
    assert rankline.Dataset(FRAME, label="clicked", name="2024").recipe.name == "2024"
    FRAME.to_csv("2024-01-01.csv", index=False)
    assert rankline.Dataset("2024-01-01.csv", label="clicked", name="churn").recipe.name == "churn"


TWICE = pa.table([[1.0], ["x"], [2.0], ["y"]], names=["age", "city", "age", "city"])
BAD_ROWS: dict[str, tuple[Any, dict[str, Any], type[RanklineError], str]] = {
    "no frame": ({"a": [1]}, {}, DataError, "rows has type dict, expected a pandas DataFrame"),
    "a list of no files": ([1], {}, DataError, r"the list of files contains a int, expected only file names\."),
    "several types": (pd.DataFrame({"a": [1, "b"]}), {}, DataError, "column a .*Use a single type per column"),
    "one name twice": (pd.DataFrame([[1, 2]], columns=["a", "a"]), {}, DataError, "'a' appears twice.*Rename one"),
    "one name twice in a table": (TWICE, {}, DataError, "column 'age' appears twice in the rows, expected distinct"),
    "no rows": (FRAME.head(0), {}, DataError, "no rows"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_and_names_that_will_not_do_are_said(case: str) -> None:
    rows, options, error, message = BAD_ROWS[case]
    with pytest.raises(error, match=message):
        rankline.Dataset(rows, **options)


BAD_CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], type[RanklineError], str]] = {
    "train": (rankline.train, ("movielens",), {"epoch": 3}, ConfigError, "Did you mean 'epochs' by 'epoch'"),
    "train first": (rankline.train, ("movielens",), {}, ArtifactError, "rankline prepare movielens"),
    "export": (rankline.export, ("movielens",), {"engin": "onnx"}, ConfigError, "Did you mean 'engine'"),
    "predict by a path": (
        rankline.predict,
        (Path("m.onnx"), FRAME),
        {},
        ConfigError,
        "expected the result of rankline.export",
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_call_that_cannot_be_done_says_what_to_give(case: str) -> None:
    function, arguments, options, error, message = BAD_CALLS[case]
    with pytest.raises(error, match=message):
        function(*arguments, **options)
    assert not Path("model_repository").exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SourceConfig(), r"rows for movielens\. Pass --data-dir"),
        (SourceConfig(data_dir=Path("data"), rows=9), "options can be used only with generated rows"),
        (SourceConfig(download="ml-0m"), "movielens has no archive 'ml-0m'"),
    ],
)
def test_source_without_rows_is_refused(config: SourceConfig, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        obtain(replace(MOVIELENS, generate=None), config, tmp_path)


def test_scores_are_a_column_more_of_what_was_given(ensemble: ExportedEnsemble) -> None:
    frame = FRAME.head(5).set_index(pd.Index(list("abcde")))
    scored = rankline.predict(ensemble, frame)
    assert list(scored.columns) == [*FRAME.columns, "score"]
    assert list(scored.index) == list("abcde")
    assert list(frame.columns) == list(FRAME.columns)  # as it was
    table = rankline.predict(ensemble, pa.Table.from_pandas(FRAME.head(5)))
    assert isinstance(table, pa.Table)
    assert table["score"].to_pylist() == scored["score"].tolist()
    assert "score" in rankline.predict(ensemble, FRAME.head(0)).columns
    repeated = rankline.predict(ensemble, TWICE.select([0, 1, 3]))  # the model does not take the city
    assert repeated.column_names == ["age", "city", "city", "score"]


def test_records_rows_and_columns_are_scored_as_a_frame_is(ensemble: ExportedEnsemble) -> None:
    frame = FRAME.head(3)
    records, columns = frame.to_dict("records"), frame.to_dict("list")
    scores = rankline.predict(ensemble, frame)["score"].tolist()
    assert rankline.predict(ensemble, records) == [
        {**row, "score": score} for row, score in zip(records, scores, strict=True)
    ]
    assert rankline.predict(ensemble, records[0]) == {**records[0], "score": scores[0]}
    assert rankline.predict(ensemble, []) == []
    scored = rankline.predict(ensemble, columns)
    assert (scored.pop("score").tolist(), scored) == (scores, columns)
    batch = rankline.predict(ensemble, pa.RecordBatch.from_pandas(frame))
    assert isinstance(batch, pa.RecordBatch)
    assert batch.column("score").to_pylist() == scores


BAD_TO_SCORE: dict[str, tuple[Any, str]] = {
    "a column of that name": (FRAME.assign(score=1.0), r"already contain the columns \['score'\].*Rename"),
    "a column too few": (FRAME[["city"]].rename(columns={"city": "aeg"}), r"columns \['age'\]"),
    "one column twice": (TWICE, "column 'age' appears twice in the rows, expected distinct names"),
    "no rows": (3, "rows has type int"),
}


@pytest.mark.parametrize("case", BAD_TO_SCORE)
def test_rows_that_cannot_be_scored_are_said(ensemble: ExportedEnsemble, case: str) -> None:
    rows, message = BAD_TO_SCORE[case]
    with pytest.raises(DataError, match=message):
        rankline.predict(ensemble, rows)


def test_inactive_version_is_not_served(tmp_path: Path) -> None:
    for offset in (10, 20):
        inactive = publish_tiny(tmp_path / NAME, offset, promote=offset == 10)
    expected = r"version 2 of 'tiny' is not active; version 1 is\. Activate it \(rankline promote tiny --to 2 --repos"
    with pytest.raises(ConfigError, match=expected), rankline.serve(inactive):
        pass


@pytest.fixture
def caught() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


def test_warnings_of_the_caller_come_as_before(
    ensemble: ExportedEnsemble, caught: list[warnings.WarningMessage]
) -> None:
    rankline.predict(ensemble, FRAME.head(1))
    warnings.warn("mine", stacklevel=1)
    assert [str(warning.message) for warning in caught] == ["mine"]


def test_export_replaces_a_damaged_version(ensemble: ExportedEnsemble, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    shutil.copytree(ensemble.path, path)
    (path / ensemble.steps[0] / "config.pbtxt").unlink()
    model = ensemble.path.parents[1] / "model.txt"
    new = rankline.export(model=model, sample=FRAME, name="mine", repository=tmp_path, progress=False)
    assert (new.version, new.is_active) == (ensemble.version + 1, True)


def test_graph_of_merlin_systems_is_exported_as_it_is(tmp_path: Path) -> None:
    from rankline.serving.engines.merlin_operators import TransformWorkflow, merlin_operator

    rows = pd.DataFrame({"user": [3, 1, 2, 3] * 5, "price": np.linspace(0, 4, 20)})
    graph = lambda: (["user"] >> ops.Categorify()) + (["price"] >> ops.Normalize(out_dtype=np.float32))  # noqa: E731
    workflow = fitted(graph, rows, tmp_path / "scratch")
    inputs = (Input(name="user", dtype="int64", shape=(None,)), Input(name="price", dtype="float32", shape=(None,)))
    save_saved_model(inputs, tmp_path / "model")
    scorer = merlin_operator("tensorflow", "PredictTensorflow")(str(tmp_path / "model"))
    node = ["user", "price"] >> TransformWorkflow(workflow) >> scorer
    places = {"work_dir": tmp_path / "work", "repository": tmp_path / "models", "progress": False}
    ensemble = rankline.export(model=node, sample=rows, name="mine", **places)
    encoded = pd.DataFrame(transformed(workflow, rows))
    total = 0.1 * encoded["user"].to_numpy() + 0.25 * encoded["price"].to_numpy()
    scored = rankline.predict(ensemble, rows)
    np.testing.assert_allclose(scored["score_click"], 1 / (1 + np.exp(-total)), rtol=1e-6)
    with pytest.raises(ConfigError, match="a merlin-systems graph already contains its workflow"):
        rankline.export(model=node, workflow=workflow, sample=rows, name="mine", **places)
