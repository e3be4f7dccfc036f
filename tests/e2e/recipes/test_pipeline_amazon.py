"""Amazon reviews through the command line: every command of docs/reference/amazon.md, real MLflow store and server."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.in_process import open_ensemble
from tests.harness.commands.command_line import commands, rankline, shortened, typed
from tests.oracles.tolerance import SCORE_ROUNDING

# Each step of the recurrent layers, one for an item of the short history, is in the graph.
SMALL = "--embedding-dim 8 --gru-units 8 --short-history 3 --batch-size 512"
RUN, RECOMMEND, *OTHERS = commands((Path(__file__).parents[3] / "docs/reference/amazon.md").read_text(encoding="utf-8"))
SHORTER = {
    "rankline sim": "--embedding_dim 8 --long_seq_length 97",
    "rankline train": "--embedding-dim 8 --batch-size 512",
}
PREPARED = "work/amazon-sim/prepared"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the document's whole run has been made, of fewer reviews and a smaller model."""
    path = tmp_path_factory.mktemp("amazon")
    said = typed(f"{RUN} --rows 2000 --negatives 1 --json result.json --batch-sizes 1 {SMALL}", path)
    assert "recommend amazon-sim" in said
    return path


@pytest.fixture(scope="module")
def result(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "result.json").read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def users(directory: Path) -> dict[str, list[str]]:
    """Each user and all that the user chose, the latest last."""
    histories = pq.read_table(directory / PREPARED / "histories.parquet")
    return dict(zip(*(column.to_pylist() for column in histories.columns), strict=True))


def test_server_ranks_each_user_as_training_did(result: dict[str, Any], users: dict[str, list[str]]) -> None:
    assert result["rows"]["valid"] == 2 * len(users)
    quality = result["quality"]
    assert quality["served_auc"] == pytest.approx(quality["valid_auc"], abs=1e-4)
    assert 0 < quality["valid_auc"] < 1
    assert 0 < quality["valid_gauc"] <= 1


def test_predict_takes_raw_ids_and_any_history(directory: Path, users: dict[str, list[str]]) -> None:
    user, items = next((user, items) for user, items in users.items() if len(items) > 12)
    latest = (items * 20)[-100:]
    known = [(user, items[-1], history) for history in (items[:-1], latest, ["B0NOTHING", *latest])]
    unknown = [("nobody", items[0], history) for history in ([], ["no such item"], items[:1])]
    together, cut, longer, *of_nobody = predicted(directory, [*known, *unknown])
    assert all(0 < score < 1 for score in (together, cut, *of_nobody))
    # The right-most 100 are kept: what is before them changes nothing.
    assert cut == pytest.approx(longer, abs=SCORE_ROUNDING)
    (alone,) = predicted(directory, known[:1])
    assert alone == pytest.approx(together, abs=SCORE_ROUNDING)


def test_example_of_texts_and_lists_is_what_the_model_takes(directory: Path) -> None:
    document = (Path(__file__).parents[3] / "docs" / "guide" / "client.md").read_text(encoding="utf-8")
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", document, re.DOTALL) if "history__nnzs" in code)
    names: dict[str, Any] = {}
    exec(code, names)
    with open_ensemble(ExportedEnsemble.load(directory / "model_repository" / "amazon-sim")) as client:
        columns = {"history": names["histories"], **{name: names["columns"][name] for name in ("user_id", "item_id")}}
        np.testing.assert_array_equal(client.predict(names["columns"]), client.predict(columns))


def predicted(directory: Path, rows: list[tuple[str, str, list[str]]]) -> list[float]:
    """Scores of users, items and histories, by one command."""
    lines = [json.dumps(dict(zip(("user_id", "item_id", "history"), row, strict=True))) + "\n" for row in rows]
    done = rankline("predict", "amazon-sim", "--input", "-", cwd=directory, stdin="".join(lines))
    assert done.returncode == 0, done.stderr
    return [float(json.loads(line)["score"]) for line in done.stdout.splitlines()]


def test_recommend_ranks_what_the_user_does_not_have(directory: Path, users: dict[str, list[str]]) -> None:
    words = shlex.split(RECOMMEND)
    user, num_items = (words[words.index(option) + 1] for option in ("--user", "--top"))
    _, *lines = typed(RECOMMEND, directory).strip().splitlines()
    assert len(lines) == int(num_items)
    recommended = [line.split()[0] for line in lines]
    assert not set(recommended) & set(users[user])
    scores = [float(line.split()[-1]) for line in lines]
    assert scores == sorted(scores, reverse=True)


def test_bad_lines_are_counted_and_too_many_of_them_stop(directory: Path, tmp_path: Path) -> None:
    before = (directory / PREPARED / "manifest.json").read_bytes()
    lines = [json.dumps({"reviewerID": f"u{i % 5}", "asin": f"i{i}", "unixReviewTime": i}) for i in range(60)]
    (tmp_path / "reviews.json").write_text("\n".join([*lines, "{broken", ""]))
    done = rankline("prepare", "amazon-sim", "--data-dir", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "dropped 1 (malformed line: reviews.json, line 61" in done.stdout
    (tmp_path / "reviews.json").write_text("no json\n" * 500)
    done = rankline("prepare", "amazon-sim", "--data-dir", str(tmp_path), cwd=directory)
    assert done.returncode == 1
    assert "reviews.json: 500 of 500 lines are malformed" in done.stderr
    assert (directory / PREPARED / "manifest.json").read_bytes() == before


def test_commands_of_the_document_work(directory: Path, tmp_path: Path) -> None:
    """In their order, and on a copy: they train anew."""
    again = shutil.copytree(directory, tmp_path / "again", symlinks=True)
    for command in OTHERS:
        assert typed(shortened(command, SHORTER), again)
