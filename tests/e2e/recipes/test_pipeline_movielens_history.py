"""MovieLens with what each user rated: every command of docs/reference/movielens.md, on generated ratings."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.harness.commands.command_line import commands, rankline, typed
from tests.oracles.tolerance import SCORE_ROUNDING

DOCUMENT = (Path(__file__).parents[3] / "docs" / "reference" / "movielens.md").read_text(encoding="utf-8")
RUN, NEXT, RECOMMEND, ON_FILES = commands(DOCUMENT)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the document's whole run has been made, of fewer ratings."""
    path = tmp_path_factory.mktemp("movielens")
    typed(f"{RUN} --rows 1000 --sweeps 20 --burn-in 5 --json result.json --batch-sizes 1", path)
    return path


def test_the_server_scores_as_training_did(directory: Path) -> None:
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


def test_a_request_names_a_user_and_a_movie_and_whoever_is_unknown_is_scored(directory: Path) -> None:
    known, nobody, nobody_else, nothing = scored(directory, [(1, 3), (10**9, 3), (-5, 3), (10**9, 10**9)])
    assert nobody == pytest.approx(nobody_else, abs=SCORE_ROUNDING)
    assert all(0 < score < 1 for score in (known, nobody, nothing))


def test_the_command_on_files_reads_the_ratings_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "ml-latest-small").mkdir()
    words = shlex.split(ON_FILES)
    done = rankline("prepare", *words[2:], cwd=tmp_path)
    assert done.returncode != 0
    assert "holds no MovieLens data" in done.stderr


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
