"""Every command that the README and the documents of serving and of recipes show, in one directory; data is short."""

import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest

from serving.export_config import ExportConfig
from tests.support.command_line import commands, started
from workflows.datasets.criteo_files import COLUMNS, LABEL
from workflows.datasets.criteo_generator import generate_criteo
from workflows.datasets.movielens_generator import generate_movielens

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SERVING = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
CRITEO = (ROOT / "docs" / "criteo.md").read_text(encoding="utf-8")
AMAZON = (ROOT / "docs" / "amazon.md").read_text(encoding="utf-8")


COMMANDS = commands(README)
# What shortens a command here, by its beginning. It only adds options.
SHORTER = {
    "make demo": "ARGS='--rows 20000 --epochs 1 --batch-sizes 1 --work-dir {work} --repository {work}/repository'",
    "rankline run": "--batch-sizes 1",
    "rankline serve": "--port 0",
    "mlflow ui": "--port {port}",
}
UNTIL_CTRL_C = {"rankline serve": r"gRPC\s+127", "mlflow ui": None}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with small ratings under the names that the README uses, and the environment of this run."""
    path = tmp_path_factory.mktemp("readme")
    (path / ".venv").symlink_to(Path(sys.prefix))
    generate_movielens(path / "ml-latest-small", num_rows=12_000, seed=2)
    ratings = pd.read_csv(path / "ml-latest-small" / "ratings.csv")
    movies = pd.read_csv(path / "ml-latest-small" / "movies.csv")
    (path / "ml-1m").mkdir()
    for name, table in (("ratings", ratings), ("movies", movies)):
        lines = ["::".join(map(str, row)) for row in table.itertuples(index=False)]
        (path / "ml-1m" / f"{name}.dat").write_text("\n".join(lines) + "\n", encoding="latin-1", errors="replace")
    generate_criteo(path / "days", num_rows=1_000, seed=2, cardinality_scale=0.001)
    clicks = pd.read_csv(path / "days" / "day_0", sep="\t", names=COLUMNS, dtype=str)
    clicks.drop(columns=LABEL).to_csv(path / "clicks.csv", index=False)
    return path


def test_the_readme_shows_commands() -> None:
    assert COMMANDS[:3] == ["make demo", "make test", "make test-all"]
    assert len(COMMANDS) > 7


@pytest.mark.parametrize(
    "command",
    [
        *(line for line in COMMANDS if not line.startswith("make test")),
        *(line for document in (SERVING, CRITEO, AMAZON) for line in commands(document)),
    ],
)
def test_a_command_of_the_documents_works(command: str, directory: Path, free_port: int) -> None:
    verb = next((verb for verb in SHORTER if command.startswith(verb)), None)
    more = SHORTER[verb].format(work=directory / "demo", port=free_port) if verb else ""
    in_root = command.startswith("make")
    line = f"exec {command} {more}" if verb in UNTIL_CTRL_C else f"{command} {more}"
    process = started(line, ROOT if in_root else directory)
    if verb in UNTIL_CTRL_C:
        wait_until_up(process, UNTIL_CTRL_C[verb], free_port)
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=800)
    assert command != "make demo" or "best attainable" in output
    assert process.returncode == 0 or (verb == "mlflow ui" and process.returncode in (-signal.SIGINT, 1, 130)), output


def wait_until_up(process: "subprocess.Popen[str]", line: "str | None", port: int) -> None:
    assert process.stdout is not None
    if line is not None:
        assert any(re.match(line, text) for text in process.stdout)
        return
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1) as answer:
                assert answer.status == 200
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail("mlflow ui did not answer")


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert "make test-all" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_readme_links_to_files_that_are_there() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / link).exists(), link


def test_serving_md_names_options_and_files_that_are_there() -> None:
    for option in re.findall(r"`--([a-z-]+)`", SERVING):
        assert option.replace("-", "_") in {field.name for field in fields(ExportConfig)}, option
    for link in re.findall(r"\]\((?!http)([^)#]+)", SERVING):
        assert (ROOT / "docs" / link).exists(), link


def test_the_benchmark_of_the_readme_reports_ratios(tmp_path: Path) -> None:
    assert "`python -m bench serving`" in README
    done = subprocess.run(
        [sys.executable, "-m", "bench", "serving", "--repeats", "1", "--json", str(tmp_path / "out.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = pd.read_json(tmp_path / "out.json", typ="series")
    assert report["name"] == "serving"
    assert {"p50_vs_merlin", "throughput_vs_merlin", "p50_over_floor"} <= set(report["ratios"])
    assert report["ratios"]["p50_vs_merlin"] == pytest.approx(
        report["results"]["merlin-systems"]["p50_ms@1"] / report["results"]["rankline"]["p50_ms@1"]
    )
    assert report["environment"]["command"].startswith("python -m bench serving")
