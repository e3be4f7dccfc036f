import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.launch.affinity import Cpu, allowed_cpus, share_of

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
