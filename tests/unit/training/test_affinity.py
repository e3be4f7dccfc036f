import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.affinity import MODES, Cpu, allowed_cpus, cores_of, set_affinity
from workflows.errors import ConfigError

ROOT = Path(__file__).parents[3]
UNIQUE = ("single_unique", "socket_unique_interleaved", "socket_unique_continuous")
# Two sockets of four cores with two threads each, numbered as Linux does: all first threads, then all second ones.
CPUS = [Cpu(socket=n % 8 // 4, core=n % 4, number=n) for n in range(16)]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("disabled", [set(range(16)), set(range(16))]),
        ("socket", [{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}]),
        ("single", [{0, 8}, {4, 12}]),
        ("single_unique", [{0, 8}, {4, 12}]),
        ("socket_unique_interleaved", [{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}]),
        ("socket_unique_continuous", [{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}]),
    ],
)
def test_two_processes_take_a_socket_each(mode: str, expected: list[set[int]]) -> None:
    assert [cores_of(mode, CPUS, rank=rank, size=2) for rank in range(2)] == expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("socket", [{0, 1, 2, 3, 8, 9, 10, 11}] * 2),
        ("single", [{0, 8}, {0, 8}]),
        ("single_unique", [{0, 8}, {1, 9}]),
        ("socket_unique_interleaved", [{0, 2, 8, 10}, {1, 3, 9, 11}]),
        ("socket_unique_continuous", [{0, 1, 8, 9}, {2, 3, 10, 11}]),
    ],
)
def test_processes_of_one_socket_share_its_cores_and_no_core_is_split(mode: str, expected: list[set[int]]) -> None:
    assert [cores_of(mode, CPUS, rank=rank, size=4) for rank in range(2)] == expected


def test_a_process_alone_has_all_sockets_where_it_shares_with_nobody() -> None:
    assert cores_of("socket_unique_interleaved", CPUS) == set(range(16))
    assert cores_of("socket_unique_continuous", CPUS) == set(range(16))
    assert cores_of("socket", CPUS) == {0, 1, 2, 3, 8, 9, 10, 11}
    assert cores_of("single", CPUS) == {0, 8}


@given(sockets=st.lists(st.integers(1, 6), min_size=1, max_size=4), size=st.integers(1, 6), mode=st.sampled_from(MODES))
def test_every_process_has_a_core_and_unique_ones_are_nobody_elses(sockets: list[int], size: int, mode: str) -> None:
    places = [(socket, core) for socket, cores in enumerate(sockets) for core in range(cores)]
    cpus = [Cpu(socket=socket, core=core, number=number) for number, (socket, core) in enumerate(places)]
    try:
        taken = [cores_of(mode, cpus, rank=rank, size=size) for rank in range(size)]
    except ConfigError:
        assert mode in UNIQUE
        assert min(sockets) < size
        return
    assert all(taken)
    if mode in UNIQUE:
        assert sum(map(len, taken)) == len(set.union(*taken))
    if mode in UNIQUE[1:]:
        assert set.union(*taken) == set(range(len(cpus)))


def test_too_many_processes_for_cores_of_their_own_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 share a socket with 2. Start fewer, or give --affinity disabled"):
        cores_of("single_unique", [Cpu(socket=0, core=n, number=n) for n in range(2)], rank=0, size=3)


def test_an_unknown_mode_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="affinity is 'socket_best'. Available: disabled, socket, single, "):
        set_affinity("socket_best")


def test_the_topology_is_read_where_the_system_has_one(tmp_path: Path) -> None:
    first = min(os.sched_getaffinity(0))
    (tmp_path / f"cpu{first}" / "topology").mkdir(parents=True)
    (tmp_path / f"cpu{first}" / "topology" / "physical_package_id").write_text("7\n")
    (tmp_path / f"cpu{first}" / "topology" / "core_id").write_text("3\n")
    found = {cpu.number: cpu for cpu in allowed_cpus(tmp_path)}
    assert found[first] == Cpu(socket=7, core=3, number=first)
    assert found.keys() == os.sched_getaffinity(0)
    assert all(cpu == Cpu(socket=0, core=number, number=number) for number, cpu in found.items() if number != first)


def test_threads_that_start_afterwards_are_bound_too_and_disabled_leaves_all_as_it_is() -> None:
    code = """
import os, threading
from training.affinity import set_affinity
before = os.sched_getaffinity(0)
set_affinity("disabled")
assert os.sched_getaffinity(0) == before
cores = set_affinity("single")
seen = []
thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
thread.start(); thread.join()
print(seen == [cores], 0 < len(cores) <= len(before))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
