"""A worker: its records, its rank, the cores it takes, and what the launcher makes of what it prints."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.launch.worker import Cpu, Worker, allowed_cpus, cores_of, parse_record, report, share_of
from rankline.launch.worker_output import Listener, clear_logs
from rankline.training.distributed.config import WorkersConfig
from rankline.training.tracking import RunLog
from rankline.workflows.core.errors import ConfigError, RanklineError, WorkerLostError
from tests.factories.recorders import ProgressRecord

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(facts=st.dictionaries(st.text(), _SCALARS, min_size=1))
def test_record_is_one_line_and_comes_back_as_it_was(facts: dict[str, object]) -> None:
    output = io.StringIO()
    with redirect_stdout(output):
        report(**{f"fact {name}": value for name, value in facts.items()})
    line = output.getvalue()
    assert line.index("\n") == len(line) - 1
    assert parse_record(line) == {f"fact {name}": value for name, value in facts.items()}


@given(line=st.text(alphabet=st.characters(exclude_characters="\x1e")))
def test_printed_text_is_no_record(line: str) -> None:
    assert parse_record(line) is None


def test_record_is_found_behind_a_line_without_an_end_and_a_torn_one_is_none() -> None:
    assert parse_record('epoch 1\x1e{"done": 1}\n') == {"done": 1}
    assert parse_record('\x1e{"done": ') is None
    assert parse_record("\x1e7\n") is None


def test_process_not_started_as_one_of_several_is_alone() -> None:
    assert Worker.from_environment({}) == Worker(rank=0, local_size=1, is_alone=True, is_launched=False)
    with Worker().in_world(WorkersConfig()) as world:
        assert (world.rank, world.size) == (0, 1)


def test_horovodrun_and_open_mpi_say_which_worker_a_process_is() -> None:
    worker = Worker.from_environment(
        {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "8", "HOROVOD_LOCAL_SIZE": "4", "RANKLINE_LAUNCHED": "1"}
    )
    assert worker == Worker(rank=3, local_size=4, is_alone=False, is_launched=True)
    worker = Worker.from_environment(
        {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    )
    assert worker == Worker(rank=5, local_rank=1, local_size=2, is_alone=False)


def test_worker_count_must_match_started_processes() -> None:
    with (
        pytest.raises(ConfigError, match="workers is 4, but 1 processes were started"),
        Worker().in_world(WorkersConfig(workers=4)),
    ):
        pass
    with Worker().in_world(WorkersConfig(workers=4, min_workers=1, max_workers=4)) as world:  # an elastic run may
        assert world.size == 1


def test_worker_reports_only_to_its_launcher(capsys: pytest.CaptureFixture[str]) -> None:
    log = RunLog("the run", "sqlite://")
    assert Worker().observers(log) == []
    (observer,) = Worker(is_alone=False, is_launched=True).observers(log)
    observer.after_checkpoint(7)
    records = [parse_record(line) for line in capsys.readouterr().out.split("\n") if line]
    assert records == [{"run_id": "the run"}, {"checkpoint_step": 7}]


# Each case is a fork of one process that has imported nothing heavy yet.
_SHARES = """
import os
from rankline.launch.worker import Worker, limit_threads, pin_cores

def in_a_fork(work):
    if os.fork() == 0:
        work()
        os._exit(0)
    os.wait()

def threads(threads, num_processes, given):
    os.environ.update(given)
    limit_threads(threads, num_processes)
    import pyarrow
    found = pyarrow.cpu_count(), os.environ.get("TF_NUM_INTRAOP_THREADS"), os.environ.get("TF_NUM_INTEROP_THREADS")
    print(*found, flush=True)

def cores(local_rank, local_size):
    pin_cores(Worker(local_rank=local_rank, local_size=local_size))
    print(*sorted(os.sched_getaffinity(0)), flush=True)

given = {"OMP_NUM_THREADS": "7"}
in_a_fork(lambda: threads(3, 2, given))  # before what the environment says
in_a_fork(lambda: threads(0, 2, given))  # which comes before the share
in_a_fork(lambda: threads(0, 100_000, {}))  # never none
for rank, size in ((0, 2), (1, 2), (0, 1), (0, 100_000)):
    in_a_fork(lambda: cores(rank, size))
"""


@pytest.mark.skipif(len(cores_of(allowed_cpus())) < 2, reason="there is one core for both")
def test_worker_takes_its_share_of_threads_and_cores() -> None:
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_THREADS")}
    command = [sys.executable, "-c", _SHARES]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, check=True)
    *threads, first, second, alone, one_of_many = done.stdout.splitlines()
    share = len(os.sched_getaffinity(0)) // 2
    assert threads == ["3 3 3", f"7 {share} {share}", "1 1 1"]
    every = " ".join(map(str, sorted(os.sched_getaffinity(0))))
    assert sorted(f"{first} {second}".split(), key=int) == every.split()
    assert alone == one_of_many == every


# Two sockets of four cores with two threads each, numbered as Linux does: all first threads, then all second ones.
CPUS = [Cpu(socket=n % 8 // 4, core=n % 4, number=n) for n in range(16)]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, [set(range(16))]),
        (2, [{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}]),
        (4, [{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}]),
        (9, [set()] * 9),
    ],
)
def test_processes_share_neighbouring_whole_cores(size: int, expected: list[set[int]]) -> None:
    assert [share_of(CPUS, rank=rank, size=size) for rank in range(size)] == expected


@given(num_cores=st.integers(1, 12), size=st.integers(1, 12))
def test_core_assignment_gives_each_core_to_one_process(num_cores: int, size: int) -> None:
    shares = [share_of([Cpu(0, n, n) for n in range(num_cores)], rank=rank, size=size) for rank in range(size)]
    if num_cores < size:
        assert not any(shares)
    else:
        assert all(shares)
        assert sorted(number for share in shares for number in share) == list(range(num_cores))


def test_topology_is_read_where_the_system_has_one(tmp_path: Path) -> None:
    first = min(os.sched_getaffinity(0))
    (tmp_path / f"cpu{first}" / "topology").mkdir(parents=True)
    (tmp_path / f"cpu{first}" / "topology" / "physical_package_id").write_text("7\n")
    (tmp_path / f"cpu{first}" / "topology" / "core_id").write_text("3\n")
    found = {cpu.number: cpu for cpu in allowed_cpus(tmp_path)}
    assert found[first] == Cpu(socket=7, core=3, number=first)
    assert found.keys() == os.sched_getaffinity(0)
    assert all(cpu == Cpu(socket=0, core=number, number=number) for number, cpu in found.items() if number != first)


MODEL = {"path": "work/m", "run_id": "r", "tracking_uri": "sqlite:///x"}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "workers"


@pytest.fixture
def seen() -> ProgressRecord:
    return ProgressRecord()


@pytest.fixture
def listener(logs: Path, seen: ProgressRecord) -> Iterator[Listener]:
    clear_logs(logs)
    with Listener(logs, seen, mpi=False) as listening:
        yield listening


def _record(worker: int, **facts: object) -> str:
    return f"[{worker}]<stdout>:\x1e{json.dumps(facts)}\n"


def _ended(worker: int, status: int) -> str:
    return f"Process {worker} exit with status code {status}.\n"


RULE = "-" * 74
OTHERS = "Terminating remaining workers after failure of Process 1.\n"


def test_reports_of_worker_0_are_shown_and_its_model_is_the_result(listener: Listener, seen: ProgressRecord) -> None:
    for line in (_record(0, done=1, total=4, note="epoch 1"), _record(0, model=MODEL)):
        assert not listener.take(line)
    assert seen.reports == [(1, 4, "epoch 1")]
    assert listener.result(0) == MODEL


def test_run_and_its_checkpoints_are_known(logs: Path, seen: ProgressRecord) -> None:
    clear_logs(logs)
    steps: list[int] = []
    with Listener(logs, seen, mpi=False, after_checkpoint=lambda: steps.append(listener.num_checkpoints)) as listener:
        for line in (_record(0, run_id="r"), _record(0, checkpoint_step=50), _record(0, checkpoint_step=100)):
            listener.take(line)
    assert (listener.run_id, steps) == ("r", [1, 2])


def test_workers_and_launcher_have_their_own_logs(listener: Listener, logs: Path) -> None:
    for line in ("[0]<stdout>:a\n", "[1]<stderr>:b\n", "[1,0]<stdout>:mpi\n", "[10]<stdout>:c\n", "starting\n"):
        listener.take(line)
    assert {log.name: log.read_text() for log in logs.iterdir()} == {
        "worker-0.log": "a\nmpi\n",
        "worker-1.log": "b\n",
        "worker-10.log": "c\n",
        "launcher.log": "starting\n",
    }


def test_logs_of_an_earlier_run_are_removed_and_those_of_a_generation_are_not(logs: Path, seen: ProgressRecord) -> None:
    logs.mkdir()
    for name in ("worker-7.log", "launcher.log", "mine.txt"):
        (logs / name).write_text("old")
    clear_logs(logs)
    assert [path.name for path in logs.iterdir()] == ["mine.txt"]
    for text in ("first", "second"):
        with Listener(logs, seen, mpi=False) as listener:
            listener.note(text)
    assert (logs / "launcher.log").read_text() == "first\nsecond\n"


@pytest.mark.parametrize(
    ("lines", "kind", "message"),
    [
        # What worker 0 says stands as it is, whoever says more.
        ([_record(1, error="no such file", is_lost=False), _record(0, error="worker 1: no such file", is_lost=False)],
         RanklineError, "^worker 1: no such file$"),
        ([_record(0, error="gone", is_lost=True), _record(1, error="no rows", is_lost=False), _ended(0, 1), OTHERS],
         RanklineError, "^worker 1: no rows$"),
        ([_record(0, error="gone", is_lost=True), _ended(1, 137), OTHERS, _ended(0, 1)],
         WorkerLostError, "^worker 1 was killed by SIGKILL, .*memory"),
        ([_ended(1, 139), OTHERS, _ended(0, 143)], WorkerLostError, "^worker 1 was killed by SIGSEGV"),
        (["[1]<stderr>:rankline: not found\n", _ended(1, 127), OTHERS, _ended(0, 143)],
         RanklineError, "^worker 1 exited with status 127: rankline: not found. Its log: .*worker-1.log$"),
        ([_ended(1, 255), OTHERS], WorkerLostError, "^worker 1 exited with status 255: no output"),
        # Asked to end, and killed as it did not: that is the one that the others waited for.
        ([_record(0, error="no answer", is_lost=True), _ended(0, 1), OTHERS, _ended(1, 137)],
         WorkerLostError, "^worker 1 stopped responding"),
        ([_record(0, error="too late", is_lost=True), _ended(0, 1), OTHERS, _ended(1, 143)],
         WorkerLostError, "^too late"),
        (["ssh not successful for host b:\n", "ssh: No route to host\n", "RuntimeError: could not\n"],
         WorkerLostError, "^b cannot be reached: ssh: No route to host. Make sure that `ssh b true` works"),
        (["Traceback\n", "RuntimeError: all is lost.\n"], RanklineError, "status 1 .* all is lost. Its log: .*r.log$"),
        ([f"{line}\n" for line in ("a warning", RULE, "prterun found no", "program.", "", "NOTE:", " Node: vm", RULE)],
         RanklineError, "a model: prterun found no program. Its log: .*r.log$"),
    ],
)  # fmt: skip
def test_workers_error_reports_the_first_cause_once(
    listener: Listener, lines: list[str], kind: type[RanklineError], message: str
) -> None:
    for line in lines:
        listener.take(line)
    with pytest.raises(kind, match=message) as raised:
        listener.result(1)
    assert raised.type is kind  # what was lost is started again in an elastic run, what failed by itself is not


def test_failure_is_known_as_soon_as_a_worker_ends(listener: Listener) -> None:
    assert not listener.take("[0]<stderr>:Process 1 exit with status code 1.\n")  # a worker only says it
    assert listener.take(_ended(1, 1))
    assert listener.take("[0]<stdout>:still here\n")


def test_workers_that_end_without_a_model_have_failed(listener: Listener) -> None:
    with pytest.raises(RanklineError, match="status 0 without producing a model"):
        listener.result(0)
