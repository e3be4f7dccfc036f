"""Which regions a client writes to again, and which it gives up."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from serving.client.failures import CallError
from serving.client.shared_memory import Region, RegionPool
from serving.client.tensors import WireTensor
from workflows.tensors import Tensor

SCHEMA = Tensor(name="x", dtype="int64", dims=(1,))
REFUSED = CallError("INVALID_ARGUMENT", "wrong shape")
RESTRICTED = CallError("UNAVAILABLE", "This protocol is restricted, expecting header 'key'")
LATE = CallError("DEADLINE_EXCEEDED", "Deadline Exceeded")
GONE = CallError("UNAVAILABLE", "failed to connect")
UNKNOWN = CallError("NOT_FOUND", "Unable to find shared memory region: 'psm_1'")


@pytest.fixture
def pool() -> Iterator[RegionPool]:
    pool = RegionPool()
    yield pool
    pool.close()


def tensors(num_rows: int = 4) -> list[WireTensor]:
    return [WireTensor(schema=SCHEMA, values=np.zeros(num_rows, np.int64), shape=(num_rows, 1))]


def is_there(region: Region) -> bool:
    return Path("/dev/shm", region.name).exists()


def test_a_region_is_taken_by_one_at_a_time_and_only_if_it_is_large_enough(pool: RegionPool) -> None:
    assert pool.take(tensors()) is None
    small, large = pool.make(tensors()), pool.make(tensors(1 << 20))
    assert (small.num_bytes, large.num_bytes) == (1 << 20, 1 << 23)
    pool.give_back(large)
    pool.give_back(small)
    assert pool.take(tensors()) is small
    assert pool.take(tensors(1 << 18)) is large
    assert pool.take(tensors()) is None


@pytest.mark.parametrize("error", [REFUSED, RESTRICTED])
def test_what_the_server_refused_it_does_not_read(pool: RegionPool, error: CallError) -> None:
    region = pool.make(tensors())
    pool.give_back_failed(region, error)
    assert pool.lost() == ()
    assert pool.take(tensors()) is region


@pytest.mark.parametrize("error", [LATE, asyncio.CancelledError(), KeyboardInterrupt()])
def test_what_was_given_up_may_still_be_read(pool: RegionPool, error: BaseException) -> None:
    other, region = pool.make(tensors()), pool.make(tensors())
    pool.give_back(other)
    pool.give_back_failed(region, error)
    assert pool.lost() == (region,)
    assert pool.take(tensors()) is other
    assert pool.take(tensors()) is None


@pytest.mark.parametrize("error", [GONE, UNKNOWN])
def test_a_new_server_knows_none_of_the_regions(pool: RegionPool, error: CallError) -> None:
    other, region = pool.make(tensors()), pool.make(tensors())
    pool.give_back(other)
    pool.give_back_failed(region, error)
    assert set(pool.lost()) == {other, region}
    assert pool.take(tensors()) is None


def test_what_the_server_has_unregistered_is_given_up_once(pool: RegionPool) -> None:
    region = pool.make(tensors())
    pool.give_back_failed(region, LATE)
    assert is_there(region)
    pool.forget(region)
    pool.forget(region)  # a thread that was slower
    assert not is_there(region)
    assert pool.lost() == ()


def test_a_closed_pool_has_given_up_all_and_makes_no_more() -> None:
    pool = RegionPool()
    taken, free, lost = (pool.make(tensors()) for _ in range(3))
    pool.give_back(free)
    pool.give_back_failed(lost, LATE)
    assert set(pool.close()) == {taken, free, lost}
    assert not any(map(is_there, (taken, free, lost)))
    assert pool.close() == []
    with pytest.raises(CallError, match="given back"):
        pool.take(tensors())
