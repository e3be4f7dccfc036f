"""The way of serving that takes the most requests is found on real servers and exported, or nothing changes."""

import json
import signal
from pathlib import Path

import psutil
import pytest

from rankline.serving.repository.ensemble import ExportedEnsemble, active_version, versions
from rankline.workflows.data.movielens.generator import generate_movielens
from tests.harness.commands.command_line import rankline, recorded, started
from tests.harness.process.waiting import wait_until, wait_until_ended

ENSEMBLE = Path("model_repository") / "movielens"
LAX = ["tune", "movielens", "--slo", "p99=10s", "--time-limit-s", "10"]
"""A bound that a busy machine keeps as well."""
RUNS = "SELECT name, status FROM runs WHERE name LIKE 'tune serving%' ORDER BY start_time"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model, and version 1 of its ensemble."""
    path = tmp_path_factory.mktemp("tune-serving")
    generate_movielens(path / "ratings", num_rows=20_000, seed=5)
    for command in ("prepare movielens --data-dir ratings", "train movielens --epochs 1", "export movielens"):
        done = rankline(*command.split(), cwd=path)
        assert done.returncode == 0, done.stderr
    return path


def test_winner_is_exported_with_the_evidence(workplace: Path) -> None:
    done = rankline(*LAX, "--only", "engine", "--threads", "1", "--no-promote", "--json", "tuned.json", cwd=workplace)
    assert done.returncode == 0, done.stderr
    found = json.loads((workplace / "tuned.json").read_text())
    tried = found["tried"]
    assert {one["config"]["engine"] for one in tried} <= {"tensorflow", "onnx"}  # as many as there was time for
    assert {one["config"]["threads"] for one in tried} == {1}
    assert all(one["readings"] and one["memory_bytes"] > 0 for one in tried)
    assert tried[0]["rate_per_s"] > 0
    assert (found["version"], found["is_active"]) == (2, False)
    assert "rankline promote movielens --to 2" in done.stdout
    assert f"--engine {tried[0]['config']['engine']}" in found["command"]
    assert active_version(workplace / ENSEMBLE, "movielens") == 1

    exported = ExportedEnsemble.load(workplace / ENSEMBLE, 2)
    assert {**exported.manifest.details["config"], "fused": None} == tried[0]["config"]
    children = recorded(
        workplace,
        "SELECT r.name, r.status FROM runs r JOIN tags t ON t.run_uuid = r.run_uuid "
        f"WHERE t.key = 'mlflow.parentRunId' AND t.value = '{found['run_id']}'",
    )
    assert {name.partition(",")[0] for name, _ in children} == {one["config"]["engine"] for one in tried}
    assert {status for _, status in children} == {"FINISHED"}
    (evidence,) = (workplace / "work").glob(f"mlartifacts/{exported.run_id}/artifacts/tune/serving.json")
    assert json.loads(evidence.read_text())["command"] == found["command"]


def test_target_that_nothing_meets_exports_nothing(workplace: Path) -> None:
    before = len(versions(workplace / ENSEMBLE))
    done = rankline("tune", "movielens", "--slo", "p99=0.001ms", "--only", "engine", cwd=workplace)
    assert done.returncode == 1
    assert "no configuration meets p99=0.001ms, so nothing was exported. The best configuration (" in done.stderr
    assert "with one request at a time" in done.stderr
    assert len(versions(workplace / ENSEMBLE)) == before
    assert recorded(workplace, RUNS)[-1] == ("tune serving, p99=0.001ms", "FAILED")


def test_ctrl_c_leaves_everything_as_it_was(workplace: Path) -> None:
    before, log = len(versions(workplace / ENSEMBLE)), workplace / "work" / "movielens" / "server.log"
    log.unlink(missing_ok=True)
    with started(f"exec rankline {' '.join(LAX)} --time-limit-s 600", workplace) as process:
        running = ("tune serving, p99=10s", "RUNNING")
        wait_until(lambda: (running in recorded(workplace, RUNS) and log.is_file()) or process.poll() is not None)
        assert process.poll() is None, process.communicate()[0]
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 130, output
    wait_until_ended(children)
    assert len(versions(workplace / ENSEMBLE)) == before
    assert recorded(workplace, RUNS)[-1] == ("tune serving, p99=10s", "KILLED")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--slo", "p99=10ms", "--rows", "100000"], "exceeds the model's limit"),
        (["--slo", "p99=10ms", "--trials", "3", "--epochs", "2"], "--trials, --epochs cannot be combined with --slo"),
        (["--engine", "onnx", "--rows", "2"], "--rows, --engine can be used only with --slo"),
    ],
)
def test_tune_refuses_before_a_server_starts(workplace: Path, options: list[str], expected: str) -> None:
    before = recorded(workplace, RUNS)
    done = rankline("tune", "movielens", *options, cwd=workplace)
    assert done.returncode == 1
    assert expected in done.stderr
    assert recorded(workplace, RUNS) == before
