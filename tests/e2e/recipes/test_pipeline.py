"""MovieLens by command line: each command of README and docs/guide/{runs,serving,measuring}.md, and what it leaves.

One run, the README's own, is looked at by all tests; commands that change what is active work on a copy of it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from mlflow import MlflowClient

from rankline.serving.client import Client
from rankline.workflows.data.movielens.generator import generate_movielens
from tests.harness.commands import distributed_document
from tests.harness.commands.command_line import RANKLINE, commands, rankline, served, shortened, started, typed
from tests.harness.process.waiting import wait_until_ended

ROOT = Path(__file__).parents[3]
RUN = "rankline run movielens --data-dir ml-latest-small --json result.json"
COMMANDS = [
    line
    for name in ("README.md", "docs/guide/runs.md", "docs/guide/serving.md")
    for line in commands((ROOT / name).read_text(encoding="utf-8"))
]
ELSEWHERE = ("make ", "source ")
"""Beginnings of commands that test_readme_and_loading.py runs, or that do nothing by themselves."""
SHORTER = {
    "rankline run ": "--epochs 1 --batch-sizes 1 --work-dir other --repository other/repository",
    "rankline tune movielens --slo": "--slo p99=10s --only engine --time-limit-s 10 --no-promote",  # on any machine
    "rankline tune ": "--epochs 1 --trials 2",
    "rankline train ": "--epochs 1",
}
UNTIL_CTRL_C = ("rankline serve", "rankline ui")
BRIEFLY = ("--min-duration-s", "1.5", "--time-limit-s", "1.5", "--window-s", "0.25")
"""Six windows: enough for an interval of what is measured."""


@dataclass(frozen=True)
class Workplace:
    """A directory in which a whole run has been made."""

    path: Path
    output: str

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.path / "result.json").read_text())  # type: ignore[no-any-return]

    @property
    def manifests(self) -> list[Path]:
        """Of the prepared data, the model, and the ensemble's one version."""
        paths = [self.path / self.result["artifacts"][name] for name in ("prepared", "model", "ensemble")]
        return [path / "manifest.json" for path in (*paths[:2], paths[2] / "movielens" / "1")]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    path = tmp_path_factory.mktemp("workplace")
    generate_movielens(path / "ml-latest-small", num_rows=20_000, seed=5)
    assert RUN in COMMANDS
    process = started(f"{RUN} --seeds 2 --epochs 2 --batch-sizes 1,64", path)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return Workplace(path, output)


@pytest.fixture(scope="module")
def again(workplace: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A copy, with the same ratings in the layout of ml-1m beside it, on which all commands were run in their order."""
    path = tmp_path_factory.mktemp("again")
    shutil.copytree(workplace.path, path, dirs_exist_ok=True)
    (path / "ml-1m").mkdir()
    for name in ("ratings", "movies"):
        table = pd.read_csv(path / "ml-latest-small" / f"{name}.csv")
        lines = ["::".join(map(str, row)) for row in table.itertuples(index=False)]
        (path / "ml-1m" / f"{name}.dat").write_text("\n".join(lines) + "\n", encoding="latin-1", errors="replace")
    for command in dict.fromkeys(COMMANDS):
        if command == RUN or command.startswith((*ELSEWHERE, *UNTIL_CTRL_C)):
            continue
        if "--if-better" in command:  # which may well not be so
            done = rankline(*command.split()[1:], cwd=path)
            assert (done.returncode, "stays active" in done.stdout) in ((0, False), (1, True)), done.stderr
        else:
            assert typed(shortened(command, SHORTER), path)
    return Workplace(path, workplace.output)


def test_run_ends_in_a_summary_and_what_to_try_next(workplace: Workplace) -> None:
    for expected in (
        "over 2 seeds",
        "alone",
        "scores compared with the expected ones",
        "report.html",
        "rankline ui",
        "rankline serve",
        "rankline recommend",
    ):
        assert expected in workplace.output
    assert "Traceback" not in workplace.output


def test_json_has_quality_over_the_seeds_and_latency_by_batch_size(workplace: Workplace) -> None:
    quality = workplace.result["quality"]
    aucs = [metrics["valid_auc"] for metrics in quality["seeds"].values()]
    assert len(aucs) == 2
    assert quality["valid_auc"] == pytest.approx(sum(aucs) / 2)
    assert quality["valid_auc_std"] == pytest.approx(abs(aucs[0] - aucs[1]) / 2**0.5)
    assert quality["valid_logloss"] < 0.7
    assert quality["valid_auc"] > 0.6
    assert quality["served_auc"] == pytest.approx(aucs[0], abs=1e-4)
    assert [entry["batch_size"] for entry in workplace.result["bench"]] == [1, 64]
    for entry in workplace.result["bench"]:
        percentiles = [entry[name] for name in ("p50_ms", "p90_ms", "p95_ms", "p99_ms")]
        reported = [value for value in percentiles if value is not None]  # a busy machine has too few samples for some
        assert reported == sorted(reported)
        assert all(value > 0 for value in reported)
        assert entry["rows_per_s"] > 0
    assert all(manifest.is_file() for manifest in workplace.manifests)
    assert workplace.result["artifacts"]["version"] == 1


def test_mlflow_has_parameters_metrics_data_model_and_benchmark(workplace: Workplace) -> None:
    artifacts = workplace.result["artifacts"]
    client = MlflowClient(tracking_uri=artifacts["tracking_uri"])
    run = client.get_run(artifacts["run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.params["epochs"] == "2"
    assert run.data.params["prepare.split"] == "random"
    assert len(client.get_metric_history(run.info.run_id, "valid_auc")) >= 1
    assert {1, 64} <= {point.step for point in client.get_metric_history(run.info.run_id, "bench/rows_per_s")}
    assert run.data.metrics["serving/rows_per_s"] > 0
    assert (run.data.tags["version"], run.data.tags["engine"]) == ("movielens 1", "tensorflow")
    assert run.info.run_name == "mlp, epochs 2, seed 0"
    assert run.data.params["prepare.source"] == "ml-latest-small"
    manifest = json.loads((workplace.path / artifacts["prepared"] / "manifest.json").read_text())
    assert {entry.dataset.digest for entry in run.inputs.dataset_inputs} == {manifest["fingerprint"][:36]}
    assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {
        *("workflow", "feature_spec.yaml", "bench", "report.html")
    }
    assert "AUC is **" in run.data.tags["mlflow.note.content"]
    model = client.get_logged_model(run.outputs.model_outputs[0].model_id)
    assert model.name == "model"


def test_commands_of_the_documents_work_one_after_the_other(again: Workplace) -> None:
    assert (again.path / "compare.html").stat().st_size > 0
    ensemble = again.path / again.result["artifacts"]["ensemble"]
    assert len(list((ensemble / "movielens").glob("*/manifest.json"))) > 1


def test_recommend_and_predict_ask_the_server_that_is_named(workplace: Workplace, url: str) -> None:
    place = ("--url", url)
    recommended = rankline("recommend", "--user", "1", "--top", "3", *place, cwd=workplace.path)
    assert recommended.returncode == 0, recommended.stderr
    scores = [float(line.split()[-1]) for line in recommended.stdout.splitlines() if re.search(r"0\.\d{4}\s*$", line)]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    scored = rankline("predict", "--input", "-", *place, cwd=workplace.path, stdin='{"userId": 1, "movieId": 31}\n')
    assert scored.returncode == 0, scored.stderr
    assert 0 < json.loads(scored.stdout)["score"] < 1


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith(UNTIL_CTRL_C)])
def test_command_that_runs_until_ctrl_c_comes_up_and_ends(command: str, again: Workplace) -> None:
    with started(f"exec {command} --port 0", again.path) as process:
        try:
            assert process.stdout is not None
            assert any(line.startswith("Press Ctrl-C to stop") for line in process.stdout)
            assert process.poll() is None, process.communicate()[0]
            children = psutil.Process(process.pid).children(recursive=True)
        finally:
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate()
    assert process.returncode in (0, 130), output
    wait_until_ended(children)


@pytest.fixture(scope="module")
def addresses(workplace: Workplace) -> Iterator[tuple[str, str]]:
    """HOST:PORT of gRPC and of HTTP, of a server for the tests that only ask it."""
    with served("rankline serve movielens --http-port 0", workplace.path) as (process, address):
        assert process.stdout is not None
        match = re.match(r"HTTP\s+http://([^/]+)/", process.stdout.readline())
        assert match
        yield address, match.group(1)


@pytest.fixture(scope="module")
def url(addresses: tuple[str, str]) -> str:
    return addresses[0]


def test_code_in_serving_md_runs(url: str) -> None:
    document = (ROOT / "docs" / "guide" / "serving.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("127.0.0.1:8001", url), names)
    assert len(names["scores"]) == 2
    assert all(0 < score < 1 for score in names["scores"])


CLIENT = (ROOT / "docs" / "guide" / "client.md").read_text(encoding="utf-8")


def example(language: str, addresses: tuple[str, str]) -> str:
    """The first example of docs/guide/client.md in a language, for a server at another address."""
    code = re.findall(rf"```{language}\n(.*?)```", CLIENT, re.DOTALL)[0]
    return str(code).replace("127.0.0.1:8001", addresses[0]).replace("127.0.0.1:8000", addresses[1])


def test_examples_for_python_curl_and_java_score_alike(addresses: tuple[str, str], tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(example("python", addresses), names)
    scores = names["scores"].reshape(-1).tolist()
    assert all(0 < score < 1 for score in scores)
    with Client(addresses[0], "movielens") as client:
        assert client.predict({"userId": [1, None], "movieId": [31, 1029]}).tolist() == pytest.approx(scores)
    done = subprocess.run(["bash", "-c", example("bash", addresses)], capture_output=True, text=True, check=True)
    (output,) = json.loads(done.stdout)["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("score", "FP32", [2, 1])
    assert output["data"] == pytest.approx(scores, abs=1e-6)
    if shutil.which("javac") is None:
        pytest.skip("the example for Java was not run: no JDK is installed")
    (tmp_path / "Score.java").write_text(example("java", addresses))
    done = subprocess.run(["java", "Score.java"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["outputs"][0]["data"][0] == pytest.approx(scores[0], abs=1e-6)


MEASURING = re.findall(
    r"rankline bench[^`\n|]*", (ROOT / "docs" / "guide" / "measuring.md").read_text(encoding="utf-8")
)
MEASURED = {
    "rankline bench --slo": "--slo p50=1us",  # which no machine holds: a few rates
    "rankline bench --json": "--batch-sizes 2,8",
    "rankline bench --against": "--batch-sizes 2,8",
    "rankline bench": "--batch-sizes 1",
}


def test_commands_of_measuring_md_measure_a_running_server(workplace: Workplace, url: str) -> None:
    (workplace.path / "times.csv").write_text("arrival_s\n" + "".join(f"{number / 200}\n" for number in range(300)))
    said = {}
    for command in MEASURING:
        arguments = shortened(command, MEASURED).split()[1:]
        done = rankline(*arguments, "--url", url, *BRIEFLY, cwd=workplace.path)
        assert done.returncode in (0, 1), done.stderr  # a busy machine is late, or slower than a moment ago
        assert "scores compared with the expected ones" in done.stdout, f"{command}\n{done.stdout}{done.stderr}"
        said[command.strip()] = done
    searched = said["rankline bench --slo p99=10ms"]
    assert re.search(r"no tested rate met the target \(p50 \S+ ms at 100/s; p50 \S+ ms at 50/s", searched.stdout)
    assert (
        "compared with the earlier report" in said["rankline bench --against before.json --max-regression 0.1"].stdout
    )
    report = json.loads((workplace.path / "before.json").read_text())
    assert [entry["batch_size"] for entry in report["bench"]] == [2, 8]
    artifacts = workplace.result["artifacts"]
    client = MlflowClient(tracking_uri=artifacts["tracking_uri"])
    history = client.get_metric_history(artifacts["run_id"], "bench/rows_per_s")
    assert {2, 8} <= {point.step for point in history}


def test_bench_compares_with_an_earlier_report(workplace: Workplace, url: str) -> None:
    bench = ["bench", "--url", url, "--batch-sizes", "64", *BRIEFLY, "--json", "now.json"]
    faster = json.loads((workplace.path / "result.json").read_text())
    for entry in faster["bench"]:  # surely faster: on a busy machine the interval of a short run may have no bound
        p50_ms, rows_per_s = (entry["p50_ms"] or 1) / 10, entry["rows_per_s"] * 10
        entry |= {"p50_ms": p50_ms, "rows_per_s": rows_per_s, "rows_per_s_interval": [rows_per_s, rows_per_s]}
        entry["intervals_ms"]["p50"] = [p50_ms, p50_ms]
    (workplace.path / "faster.json").write_text(json.dumps(faster))
    for duration_s in ("1.5", "10", "60"):  # that of now, too
        longer = ("--min-duration-s", duration_s, "--time-limit-s", duration_s)
        slower = rankline(*bench, *longer, "--against", "faster.json", cwd=workplace.path)
        if slower.returncode:
            break
    run_id = workplace.result["artifacts"]["run_id"]
    within = rankline(*bench, "--against", run_id, "--max-regression", "100", cwd=workplace.path)
    assert slower.returncode == 1, slower.stderr
    assert re.search(r"(p50 ms|rows/s), 64 rows .* worse *$", slower.stdout, re.MULTILINE)
    assert "1 row was not measured in this run" in slower.stdout
    assert "also in MLflow run" in slower.stdout
    assert within.returncode == 0, within.stderr
    assert "no significant regression beyond 10000%" in within.stdout
    assert run_id in json.loads((workplace.path / "now.json").read_text())["environment"]["command"]


def test_status_says_what_answers_and_what_a_server_has(workplace: Workplace, url: str, tmp_path: Path) -> None:
    done = rankline("status", "--url", url, "--json", str(tmp_path / "status.json"), cwd=workplace.path)
    assert done.returncode == 0, done.stderr
    assert "the same" in done.stdout
    (status,) = json.loads((tmp_path / "status.json").read_text())["ensembles"]
    artifacts = workplace.result["artifacts"]
    assert (status["name"], status["version"], status["served"], status["others"]) == ("movielens", 1, 1, [])
    assert status["run_id"] == artifacts["run_id"]
    assert status["metrics"]["valid_auc"] == workplace.result["quality"]["seeds"]["0"]["valid_auc"]
    manifest = json.loads((workplace.path / artifacts["prepared"] / "manifest.json").read_text())
    assert manifest["fingerprint"].startswith(status["data"])
    nobody = rankline("status", "--url", "127.0.0.1:1", cwd=workplace.path)
    assert nobody.returncode == 1
    assert "127.0.0.1:1 did not return the configuration of 'movielens'" in nobody.stderr


def assert_refused(workplace: Workplace, message: str, *arguments: str) -> None:
    """The command fails with one or two lines that match `message`, and leaves every artifact as it was."""
    before = [manifest.read_bytes() for manifest in workplace.manifests]
    done = rankline(*arguments, cwd=workplace.path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(message, done.stderr), done.stderr
    assert 1 <= len(done.stderr.strip().splitlines()) <= 2, done.stderr
    assert [manifest.read_bytes() for manifest in workplace.manifests] == before


@contextmanager
def damaged(path: Path, content: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def test_damaged_artifact_is_found_before_it_is_used(workplace: Workplace) -> None:
    artifacts = workplace.result["artifacts"]
    part = workplace.path / artifacts["prepared"] / "train/part-000.parquet"
    with damaged(part, part.read_bytes()[:-10]):
        assert_refused(workplace, r"part-000\.parquet has \d+ bytes, expected", "train", "movielens")
    plan = workplace.path / artifacts["ensemble"] / "movielens_score_v1/1/plan/plan.json"
    with damaged(plan, plan.read_bytes().replace(b"userId", b"userIt")):
        assert_refused(workplace, r"plan\.json does not match its checksum", "serve", "--port", "0")
    weights = next((workplace.path / artifacts["model"]).rglob("variables.data*"))
    with damaged(weights, bytes(weights.stat().st_size)):
        assert_refused(workplace, "does not match its checksum", "export", "movielens")


def test_model_of_other_data_is_not_exported(workplace: Workplace, tmp_path: Path) -> None:
    shutil.copytree(workplace.path / "work" / "movielens", tmp_path / "work" / "movielens")
    shutil.copytree(workplace.path / "ml-latest-small", tmp_path / "ml-latest-small")
    again = rankline("prepare", "movielens", "--data-dir", "ml-latest-small", "--split-seed", "1", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    done = rankline("export", "movielens", cwd=tmp_path)
    assert done.returncode == 1
    assert "was trained on prepared data" in done.stderr
    assert not (tmp_path / "model_repository" / "movielens").exists()


def test_ctrl_c_while_training_leaves_what_was_whole_and_nothing_else(workplace: Workplace, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [RANKLINE, "run", "movielens", "--data-dir", workplace.path / "ml-latest-small", "--epochs", "500"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("prepare"):
            break
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode != 0
    assert "Traceback" not in stderr
    assert sorted(path.name for path in (tmp_path / "work" / "movielens").iterdir()) == ["prepared"]


def name_of(process: psutil.Process) -> str | None:
    """Its name; None if it has just ended."""
    with suppress(psutil.NoSuchProcess):
        return process.name()
    return None


def test_ctrl_c_while_measuring_stops_the_server(workplace: Workplace) -> None:
    process = subprocess.Popen(
        [RANKLINE, "bench"], cwd=workplace.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    children: list[psutil.Process] = []
    try:
        while not any("tritonserver" in (name_of(child) or "") for child in children):
            assert process.poll() is None, process.communicate()[1]
            children = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert process.returncode != 0
    assert "Traceback" not in stderr
    wait_until_ended(children)


def test_full_disk_leaves_the_old_export_as_it_was(workplace: Workplace, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    ensemble = workplace.path / workplace.result["artifacts"]["ensemble"]
    size_kb = sum(-(-file.stat().st_size // 4096) * 4 for file in ensemble.rglob("*")) + 100
    script = f"""
        mount -t tmpfs -o size={size_kb}k tmpfs '{tmp_path}/full' || exit 77
        cp -r '{ensemble}' '{tmp_path}/full/movielens' || exit 78
        '{RANKLINE}' export movielens --repository '{tmp_path}/full' && exit 79
        diff -r '{ensemble}' '{tmp_path}/full/movielens'
    """
    if shutil.which("unshare") is None:
        pytest.skip("a small file system of its own needs unshare, of util-linux")
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    done = subprocess.run(command, cwd=workplace.path, capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"a file system of its own is not allowed here: {done.stderr}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the disk is full" in done.stderr


def test_doctor_finds_this_machine_fit(tmp_path: Path) -> None:
    doctor = distributed_document.arguments(distributed_document.DOCTOR)
    done = rankline(*doctor, "--json", str(tmp_path / "doctor.json"), cwd=Path.cwd())
    assert done.returncode == 0, done.stdout
    assert "embedded Triton" in done.stdout
    assert "torch" in done.stdout
    assert "✗" not in done.stdout
    checks = json.loads((tmp_path / "doctor.json").read_text())["checks"]
    assert len(checks) == len(re.findall(r"^[✓–] ", done.stdout, re.MULTILINE))
    assert "Ready: prepare, train, export, serve and bench work here." in done.stdout
    assert {check["name"] for check in checks if check["required"] and not check["works"]} == set()
