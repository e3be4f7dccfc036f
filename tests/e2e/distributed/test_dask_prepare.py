"""prepare on real Dask processes: the same data whoever makes them and whoever dies; one message for what is wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from distributed import Client

from rankline.workflows.core.errors import ClusterError
from rankline.workflows.core.progress import SILENT
from rankline.workflows.data.amazon.dataset import AMAZON
from rankline.workflows.data.criteo.dataset import CRITEO
from rankline.workflows.data.criteo.reader import read_criteo
from rankline.workflows.preprocess.config import DaskConfig, PrepareConfig
from rankline.workflows.preprocess.dask_cluster import open_pool
from rankline.workflows.preprocess.executor import LOCAL, Pool
from rankline.workflows.preprocess.prepare import prepare
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.preprocess.raw import RawData
from tests.harness.process.waiting import wait_until

CHOICES = PrepareConfig(frequency_threshold=2, hash_buckets=5)
ROOT = Path(__file__).parents[3]
LIMIT_S = 1800


@contextmanager
def dask(command: str, *arguments: str, code: Path = ROOT, before: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A scheduler or worker with the Rankline in `code`, for as long as the block lasts."""
    program = f"import sys\nsys.path.insert(0, {str(code)!r})\n{before}\n"
    program += f"from distributed.cli.dask_{command} import main\nmain()"
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        cwd=code,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def scheduler(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A scheduler and its address."""
    file = directory / "scheduler.json"
    arguments = ["--port", "0", "--no-dashboard", "--dashboard-address", "127.0.0.1:0", "--host", "127.0.0.1"]
    with dask("scheduler", *arguments, "--scheduler-file", str(file)) as process:
        wait_until(lambda: file.is_file() and file.read_bytes().endswith(b"}"))
        yield process, json.loads(file.read_text(encoding="utf-8"))["address"]


def worker(
    address: str, directory: Path, code: Path = ROOT, before: str = ""
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A worker that is not started anew when it dies."""
    options = ["--no-nanny", "--nthreads", "1", "--no-dashboard", "--local-directory", str(directory)]
    return dask("worker", address, *options, code=code, before=before)


def await_workers(address: str, number: int) -> None:
    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(number)


def await_no_workers(address: str) -> None:
    with Client(address, set_as_default=False) as client:
        wait_until(lambda: not client.scheduler_info()["workers"])


class At:
    """Does something once, when the progress of `prepare` reaches a point."""

    def __init__(self, point: float, action: Callable[[], object]) -> None:
        self._point, self._action = point, action
        self.is_done = False

    def update(self, done: float, total: float, note: str = "") -> None:
        if done >= self._point and not self.is_done:
            self.is_done = True
            self._action()


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> RawData:
    directory = tmp_path_factory.mktemp("raw")
    CRITEO.generate(directory, num_rows=4_000, seed=1, cardinality_scale=0.001, progress=SILENT)
    return read_criteo(directory, shard_bytes=1 << 17)


@pytest.fixture(scope="module")
def alone(raw: RawData, tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return made(raw, tmp_path_factory.mktemp("alone") / "prepared", LOCAL)


def made(raw: RawData, output: Path, pool: Pool, progress: At | None = None) -> PreparedData:
    return prepare(
        CRITEO, raw, output, CHOICES, source="generated", partition_rows=100, progress=progress or SILENT, pool=pool
    )


def contents(prepared: PreparedData) -> dict[str, str]:
    """Checksum of every file but those in which NVTabular notes the time or keeps objects in any order."""
    left_out = ("workflow/workflow.pkl", "workflow/metadata.json")
    return {name: file.sha256 for name, file in prepared.manifest.files.items() if name not in left_out}


def test_dead_worker_costs_nothing_and_a_dead_scheduler_the_run(
    raw: RawData, alone: PreparedData, tmp_path: Path
) -> None:
    assert len(contents(alone)) > 30  # six files of rows, the spec, and 26 vocabularies
    output = tmp_path / "work" / "prepared"
    with scheduler(tmp_path) as (process, address), worker(address, tmp_path) as first, worker(address, tmp_path):
        await_workers(address, 2)
        with open_pool(DaskConfig(dask=address, dask_timeout_s=LIMIT_S), output.parent) as pool:
            death = At(2.2, first.kill)
            together = made(raw, output, pool, death)
            assert first.wait() == -signal.SIGKILL
            assert contents(together) == contents(alone)
            with pytest.raises(
                ClusterError, match=rf"scheduler at {address} exited or does not respond.*run this again"
            ):
                made(raw, output, pool, At(1.2, process.kill))
    assert PreparedData.load(output).manifest == together.manifest
    assert [path.name for path in output.parent.iterdir()] == ["prepared"]


def test_worker_of_other_code_or_without_it_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(ROOT / "rankline", other / "rankline", ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "rankline/workflows/preprocess/executor.py").open("a", encoding="utf-8") as file:
        file.write("# another state of the code\n")
    with scheduler(tmp_path) as (_, address):
        config = DaskConfig(dask=address, dask_timeout_s=LIMIT_S)
        cases = {
            r"worker tcp.* has Rankline's code \w+, not \w+\. Install the same versions everywhere": {"code": other},
            r"worker tcp.* cannot run Rankline .*workflows.*Start it in an environment": {
                "before": "sys.modules['rankline.workflows'] = None"
            },
        }
        for message, options in cases.items():
            with (
                worker(address, tmp_path, **options),  # type: ignore[arg-type]
                pytest.raises(ClusterError, match=message),
                open_pool(config, tmp_path / "work"),
            ):
                raise AssertionError
            await_no_workers(address)


def test_workers_of_this_machine_make_the_same_rows_with_histories(tmp_path: Path) -> None:
    AMAZON.generate(tmp_path / "raw", num_rows=3_000, seed=1, cardinality_scale=1.0, progress=SILENT)
    raw = AMAZON.read(tmp_path / "raw")
    with open_pool(DaskConfig(dask="local:2", dask_memory="2GB", dask_timeout_s=LIMIT_S), tmp_path / "work") as workers:
        alone, together = (
            prepare(AMAZON, raw, tmp_path / "work" / name, source="generated", partition_rows=500, pool=pool)
            for name, pool in (("alone", LOCAL), ("together", workers))
        )
    assert contents(together) == contents(alone)
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["alone", "together"]


def test_ctrl_c_ends_the_workers_and_leaves_nothing_behind(tmp_path: Path) -> None:
    work, said = tmp_path / "work", tmp_path / "stderr"
    program = "from rankline.cli.main import main\nif __name__ == '__main__': main()"
    arguments = ["prepare", "criteo-dlrm", "--rows", "20000", "--cardinality-scale", "0.01"]
    arguments += ["--dask", "local:2", "--dask-timeout-s", str(LIMIT_S), "--work-dir", str(work)]
    with said.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        wait_until(lambda: any(work.glob("criteo-dlrm/.prepared.scratch.*/shards/*/train")))
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.wait() != 0
        wait_until(lambda: not processes_of_session(process.pid))
    finally:
        for left in processes_of_session(process.pid):
            left.kill()
    assert [path.name for path in work.iterdir() if path.name.startswith(".")] == []
    assert not (work / "criteo-dlrm").exists()
    assert "Traceback" not in said.read_text(encoding="utf-8")


def processes_of_session(session: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
