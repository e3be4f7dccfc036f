"""A new version answers only if it is better, by what both score through one server."""

import json
from pathlib import Path

import pytest

from rankline.serving.repository.ensemble import ExportedEnsemble, active_version
from rankline.workflows.data.movielens.generator import generate_movielens
from tests.harness.commands.command_line import rankline, served

pytestmark = pytest.mark.in_order

ENSEMBLE = Path("model_repository") / "movielens"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1 has learned next to nothing, and the model that is there now is better."""
    path = tmp_path_factory.mktemp("promotion")
    generate_movielens(path / "ratings", num_rows=20_000, seed=5)
    for command in (
        "prepare movielens --data-dir ratings",
        "train movielens --epochs 1 --learning-rate 1e-6",
        "export movielens",
        "train movielens --epochs 2",
    ):
        done = rankline(*command.split(), cwd=path)
        assert done.returncode == 0, done.stderr
    return path


def answering(workplace: Path) -> int:
    return active_version(workplace / ENSEMBLE, "movielens")


def last_line(output: str) -> str:
    return output.strip().rpartition("\n")[2]


def test_versions_take_over_as_they_are_better(workplace: Path) -> None:
    export = ["export", "movielens", "--if-better"]
    slow = rankline(*export, "auc", "--p99", "0.001ms", cwd=workplace)
    assert slow.returncode == 1
    assert "version 1 stays active: p99 " in slow.stdout
    assert "expected at most 0.001" in slow.stdout
    assert last_line(slow.stdout).startswith(
        f"{ENSEMBLE}: version 1 stays active: version 2 does not meet --if-better."
    )
    assert answering(workplace) == 1

    better = rankline(*export, "logloss", "--by", "0.0001", "--p99", "60s", cwd=workplace)
    assert better.returncode == 0, better.stdout + better.stderr
    assert "version 3 is better than version 1: logloss " in better.stdout
    assert last_line(better.stdout) == f"{ENSEMBLE}: version 3 is active"
    assert "not promoted" not in better.stdout
    assert answering(workplace) == 3

    again = rankline(*export, "auc", cwd=workplace)
    assert again.returncode == 1
    assert "version 3 stays active: AUC is not significantly better" in again.stdout
    assert last_line(again.stdout).endswith(" rankline promote movielens --to 4")
    assert answering(workplace) == 3

    assert rankline("promote", "movielens", cwd=workplace).returncode == 0
    assert answering(workplace) == 4
    assert rankline("rollback", "movielens", cwd=workplace).returncode == 0
    assert answering(workplace) == 3
    assert ExportedEnsemble.load(workplace / ENSEMBLE).version == 3


def test_alias_says_what_answers_here_and_elsewhere(workplace: Path) -> None:
    """After the test above, which left the versions 2 to 4."""
    told = rankline("register", "movielens", cwd=workplace)
    assert "movielens version 4, registered as 1: candidate of the registered model" in told.stdout, told.stderr
    assert rankline("promote", "movielens", "--to", "3", cwd=workplace).returncode == 0
    status = rankline("status", "--json", "status.json", cwd=workplace)
    assert status.returncode == 0, status.stderr
    (found,) = json.loads((workplace / "status.json").read_text())["ensembles"]
    assert (found["version"], found["champion"], found["disagreements"]) == (3, 3, [])

    follow = "rankline serve --follow models:/movielens@champion --repository elsewhere"
    with served(follow, workplace) as (process, url):
        assert process.stdout is not None
        assert rankline("rollback", "movielens", "--to", "2", cwd=workplace).returncode == 0
        assert any("version 2 is active" in line for line in process.stdout)
        told = rankline("status", "--url", url, cwd=workplace)
        assert "and the" not in told.stdout, told.stdout
    assert process.returncode == 0
    assert active_version(workplace / "elsewhere" / "movielens", "movielens") == 2


def test_metric_of_another_task_is_reported_before_the_export(workplace: Path) -> None:
    before = sorted(path.name for path in (workplace / ENSEMBLE).iterdir())
    done = rankline("export", "movielens", "--if-better", "rmse", cwd=workplace)
    assert done.returncode == 1
    assert "--if-better is 'rmse', expected auc or logloss because the task is binary" in done.stderr
    assert sorted(path.name for path in (workplace / ENSEMBLE).iterdir()) == before
