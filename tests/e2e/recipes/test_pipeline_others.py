"""PyTorch, histories of MovieLens and data that somebody else prepared: from files to served scores."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rankline.workflows.data.movielens.generator import generate_movielens
from tests.harness.commands.command_line import commands, rankline, typed
from tests.oracles.tolerance import SCORE_ROUNDING

RECIPE = "movielens-torch"


def output_of(*arguments: str, cwd: Path) -> str:
    done = rankline(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workplace")
    generate_movielens(path / "ratings", num_rows=20_000, seed=5)
    quick = ["--epochs", "3", "--batch-size", "2048", "--embedding-dim-cap", "16", "--batch-sizes", "1"]
    output_of("run", RECIPE, "--data-dir", "ratings", "--json", "result.json", *quick, cwd=path)
    return path


@pytest.fixture
def result(workplace: Path) -> Any:
    return json.loads((workplace / "result.json").read_text())


def test_served_model_ranks_as_it_did_offline(result: Any) -> None:
    quality = result["quality"]
    assert quality["valid_auc"] > 0.6
    assert quality["served_auc"] == pytest.approx(quality["valid_auc"], abs=1e-4)
    assert [entry["batch_size"] for entry in result["bench"]] == [1]


def test_ensemble_holds_torchscript_for_the_pytorch_backend(workplace: Path, result: Any) -> None:
    ensemble = workplace / result["artifacts"]["ensemble"]
    score = ensemble / f"{RECIPE}_score_v1"
    assert sorted(path.name for path in (score / "1").iterdir()) == ["model.pt", "plan"]
    config = (score / "config.pbtxt").read_text()
    assert 'backend: "pytorch"' in config
    assert 'platform: "pytorch_libtorch"' in config
    assert 'name: "score__0"' in config
    manifest = json.loads((ensemble / RECIPE / "1" / "manifest.json").read_text())
    assert manifest["details"]["parity"]["largest_score_difference"] <= 1e-5


def test_predict_and_recommend_ask_it(workplace: Path) -> None:
    scored = json.loads(output_of("predict", RECIPE, "--userId", "1", "--movieId", "31", cwd=workplace))
    assert 0 < scored["score"] < 1
    table = output_of("recommend", RECIPE, "--user", "1", "--top", "3", cwd=workplace)
    assert len(table.strip().splitlines()) >= 4


DOCUMENT = (Path(__file__).parents[3] / "docs" / "reference" / "movielens.md").read_text(encoding="utf-8")
RUN, NEXT, RECOMMEND, ON_FILES = commands(DOCUMENT)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the document's whole run has been made, of fewer ratings."""
    path = tmp_path_factory.mktemp("movielens")
    typed(f"{RUN} --rows 1000 --sweeps 20 --burn-in 5 --json result.json --batch-sizes 1", path)
    return path


def test_server_scores_as_training_did(directory: Path) -> None:
    result = json.loads((directory / "result.json").read_text())
    quality = result["quality"]
    assert quality["served_auc"] == pytest.approx(quality["valid_auc"], abs=1e-4)


def test_recommend_ranks_what_a_user_has_not_rated(directory: Path) -> None:
    typed(f"{NEXT} --rows 1000 --json next.json --batch-sizes 1", directory)
    quality = json.loads((directory / "next.json").read_text())["quality"]
    assert quality["served_auc"] == pytest.approx(quality["valid_auc"], abs=1e-4)
    offered = recommended(RECOMMEND, directory)
    assert len(offered) == int(shlex.split(RECOMMEND)[-1])
    histories = pq.read_table(directory / "work" / "movielens-next" / "prepared" / "histories.parquet")
    assert not set(offered) & set(histories.filter(pc.equal(histories["userId"], 1))["movieId"][0].as_py())


def test_request_names_a_user_and_a_movie_and_whoever_is_unknown_is_scored(directory: Path) -> None:
    known, nobody, nobody_else, nothing = scored(directory, [(1, 3), (10**9, 3), (-5, 3), (10**9, 10**9)])
    assert nobody == pytest.approx(nobody_else, abs=SCORE_ROUNDING)
    assert all(0 < score < 1 for score in (known, nobody, nothing))


def recommended(command: str, directory: Path) -> list[int]:
    """The movies that a command prints, whose scores fall."""
    rows = re.findall(r"^(\d+) .* (0\.\d+) *$", typed(command, directory), re.MULTILINE)
    found = [(int(movie), float(score)) for movie, score in rows]
    scores = [score for _, score in found]
    assert scores == sorted(scores, reverse=True)
    return [movie for movie, _ in found]


def scored(directory: Path, rows: list[tuple[int, int]]) -> list[Any]:
    """Scores of users and movies, by one command."""
    lines = [json.dumps(dict(zip(("userId", "movieId"), row, strict=True))) + "\n" for row in rows]
    done = rankline("predict", "movielens-history", "--input", "-", cwd=directory, stdin="".join(lines))
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["score"] for line in done.stdout.splitlines()]


USERS, ITEMS, CATEGORIES, WIDTH = 30, 80, 6, 8
COLUMNS = ("label", "uid", "item", "cat", "item_pos", "cat_pos", "item_neg", "cat_neg")
SPEC = f"""
feature_spec:
  label: {{dtype: int64}}
  uid: {{dtype: int64, cardinality: {USERS}}}
  item: {{dtype: int64, cardinality: {ITEMS}}}
  cat: {{dtype: int64, cardinality: {CATEGORIES}}}
  item_pos: {{dtype: int64, cardinality: {ITEMS}, dimensions: [{WIDTH}]}}
  cat_pos: {{dtype: int64, cardinality: {CATEGORIES}, dimensions: [{WIDTH}]}}
  item_neg: {{dtype: int64, cardinality: {ITEMS}, dimensions: [{WIDTH}]}}
  cat_neg: {{dtype: int64, cardinality: {CATEGORIES}, dimensions: [{WIDTH}]}}
source_spec:
  train: [{{type: parquet, features: [{", ".join(COLUMNS)}], files: [train/part.0.parquet]}}]
  test: [{{type: parquet, features: [{", ".join(COLUMNS)}], files: [test/part.0.parquet]}}]
channel_spec:
  label: [label]
  user_features: [uid]
  target_item_features: [item, cat]
  positive_history: [item_pos, cat_pos]
  negative_history: [item_neg, cat_neg]
"""


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """Parquet files with the columns of NVIDIA's SIM, zeros before the ids."""
    rng = np.random.default_rng(4)
    category = np.append(0, rng.integers(1, CATEGORIES + 1, ITEMS))
    for mapping, num_rows in (("train", 600), ("test", 200)):
        lengths = rng.integers(1, WIDTH + 1, num_rows)
        is_item = np.arange(WIDTH) >= WIDTH - lengths[:, None]
        item, history, negatives = (rng.integers(1, ITEMS + 1, shape) for shape in (num_rows, *[is_item.shape] * 2))
        columns = {"label": np.arange(num_rows) % 2, "uid": rng.integers(1, USERS + 1, num_rows)}
        columns |= {"item": item, "cat": category[item]}
        for name, ids in (("pos", history * is_item), ("neg", negatives * is_item)):
            columns |= {f"item_{name}": ids.tolist(), f"cat_{name}": category[ids].tolist()}
        (tmp_path / "mine" / mapping).mkdir(parents=True)
        pq.write_table(pa.table(columns), tmp_path / "mine" / mapping / "part.0.parquet")
    (tmp_path / "mine" / "feature_spec.yaml").write_text(SPEC)
    return tmp_path


def test_model_of_imported_data_is_served_by_its_ids(imported: Path) -> None:
    small = ["--epochs", "1", "--hidden", "8", "--embedding-dim", "4", "--batch-size", "128"]
    for command in (
        ["import", "amazon-din", "mine"],
        ["train", "amazon-din", *small],
        ["export", "amazon-din"],
    ):
        done = rankline(*command, cwd=imported)
        assert done.returncode == 0, done.stderr
    row = {"uid": 3, "item": 7, "cat": 2, "item_pos": [5, 6], "cat_pos": [1, 1]}
    longer = {**row, "item_pos": list(range(1, WIDTH + 1)), "cat_pos": [1] * WIDTH}
    too_long = {**row, "item_pos": [9, *longer["item_pos"]], "cat_pos": [4, *longer["cat_pos"]]}  # type: ignore[misc]
    uneven = {**row, "cat_pos": [4, 1, 1]}
    rows = [row, uneven, longer, too_long, {**row, "item": ITEMS + 1}, {**row, "item": 0}]
    lines = "".join(json.dumps(each) + "\n" for each in rows)
    done = rankline("predict", "amazon-din", "--input", "-", cwd=imported, stdin=lines)
    assert done.returncode == 0, done.stderr
    scores = [json.loads(line)["score"] for line in done.stdout.splitlines()]
    assert scores[::2] == pytest.approx(scores[1::2], abs=SCORE_ROUNDING)
    assert len({round(score, 6) for score in scores[::2]}) == 3
