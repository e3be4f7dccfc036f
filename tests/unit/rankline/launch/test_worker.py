"""A worker: its records, its rank, and the cores it takes."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.launch.worker import Cpu, Worker, allowed_cpus, parse_record, report, share_of
from rankline.training.distributed.config import WorkersConfig
from rankline.training.tracking import RunLog
from rankline.workflows.core.errors import ConfigError

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


def test_process_that_nobody_started_as_one_of_several_is_alone() -> None:
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


def test_another_number_of_workers_than_was_started_is_refused() -> None:
    with (
        pytest.raises(ConfigError, match="workers is 4, but 1 were started"),
        Worker().in_world(WorkersConfig(workers=4)),
    ):
        pass
    with Worker().in_world(WorkersConfig(workers=4, min_workers=1, max_workers=4)) as world:  # an elastic run may
        assert world.size == 1


def test_only_a_worker_that_our_launcher_started_reports_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    log = RunLog("the run", "sqlite://")
    assert Worker().observers(log) == []
    (observer,) = Worker(is_alone=False, is_launched=True).observers(log)
    observer.after_checkpoint(7)
    records = [parse_record(line) for line in capsys.readouterr().out.split("\n") if line]
    assert records == [{"run_id": "the run"}, {"checkpoint_step": 7}]


_THREADS = """
import os, sys
from rankline.launch.worker import limit_threads
limit_threads(int(sys.argv[1]), int(sys.argv[2]))
import pyarrow
print(pyarrow.cpu_count(), os.environ.get("TF_NUM_INTRAOP_THREADS"), os.environ.get("TF_NUM_INTEROP_THREADS"))
"""


@pytest.mark.parametrize(
    ("threads", "num_processes", "given", "expected"),
    [
        (3, 1, None, "3 3 3"),  # as asked for
        (3, 2, "7", "3 3 3"),  # before what the environment says
        (0, 2, "7", "7 {share} {share}"),  # which comes before the share
        (0, 100_000, None, "1 1 1"),  # never none
        (0, 1, "5", "5 None None"),  # one process has all
    ],
)
def test_process_computes_and_reads_on_its_share_of_the_cores(
    threads: int, num_processes: int, given: str | None, expected: str
) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", _THREADS, str(threads), str(num_processes)],
        env=kept if given is None else {**kept, "OMP_NUM_THREADS": given},
        capture_output=True,
        text=True,
        check=True,
    )
    share = max(1, len(os.sched_getaffinity(0)) // num_processes)
    assert done.stdout.strip() == expected.format(share=share)


_CORES = """
import os, sys
from rankline.launch.worker import Worker, pin_cores
pin_cores(Worker(local_rank=int(sys.argv[1]), local_size=int(sys.argv[2])))
print(*sorted(os.sched_getaffinity(0)))
"""


def cores_taken(local_rank: int, local_size: int) -> set[str]:
    command = [sys.executable, "-c", _CORES, str(local_rank), str(local_size)]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core for both")
def test_workers_of_a_machine_share_its_cores_out() -> None:
    every = set(map(str, os.sched_getaffinity(0)))
    first, second = (cores_taken(rank, 2) for rank in range(2))
    assert first | second == every
    assert not first & second


@pytest.mark.parametrize("local_size", [0, 1, 100_000])
def test_worker_alone_and_one_of_more_than_there_are_cores_may_use_any(local_size: int) -> None:
    assert cores_taken(0, local_size) == set(map(str, os.sched_getaffinity(0)))


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
def test_every_core_belongs_to_one_process(num_cores: int, size: int) -> None:
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
