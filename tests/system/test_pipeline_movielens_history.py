"""MovieLens with what each user rated: every command of docs/movielens.md, on generated ratings."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import commands, rankline, typed
from tests.support.rounding import SCORE_ROUNDING

RUN, RECOMMEND, ON_FILES = commands((Path(__file__).parents[2] / "docs" / "movielens.md").read_text(encoding="utf-8"))


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


def test_the_recommend_of_the_document_ranks_all_movies(directory: Path) -> None:
    said = typed(RECOMMEND, directory)
    scores = [float(number) for number in re.findall(r" (0\.\d+)", said)]
    assert len(scores) == int(shlex.split(RECOMMEND)[-1])
    assert scores == sorted(scores, reverse=True)


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


def scored(directory: Path, rows: list[tuple[int, int]]) -> list[Any]:
    """Scores of users and movies, by one command."""
    lines = [json.dumps(dict(zip(("userId", "movieId"), row, strict=True))) + "\n" for row in rows]
    done = rankline("predict", "--recipe", "movielens-history", "--input", "-", cwd=directory, stdin="".join(lines))
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["score"] for line in done.stdout.splitlines()]
