"""Pools of workers: a real scheduler in this process, with workers in its threads or without any."""

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import dask
import pytest
from distributed import Client, LocalCluster
from distributed.security import Security

from rankline.workflows.core.errors import ClusterError, ConfigError, DataError
from rankline.workflows.preprocess.config import DaskConfig
from rankline.workflows.preprocess.dask_cluster import open_pool
from rankline.workflows.preprocess.executor import LOCAL, Pool, Report


def double(number: int, report: Report) -> int:
    report(0.5)
    return 2 * number


def begin(task: tuple[Path, int], report: Report) -> None:
    """Leave a file; the first task fails at once, the second is at work for a moment."""
    directory, number = task
    (directory / str(number)).touch()
    if number == 0:
        raise DataError("row 7 is no row")
    time.sleep(0.5)
    (directory / f"{number} ended").touch()


def time_out(_number: int, _report: Report) -> None:
    raise TimeoutError("disk")


def cluster_of(num_workers: int) -> LocalCluster:
    return LocalCluster(
        n_workers=num_workers,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
    )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with cluster_of(2) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(params=["here", "dask"])
def pool(request: pytest.FixtureRequest, address: str, tmp_path: Path) -> Iterator[Pool]:
    if request.param == "here":
        yield LOCAL
        return
    with open_pool(DaskConfig(dask=address), tmp_path) as workers:
        yield workers


@pytest.mark.parametrize("form", ["tcp://scheduler:8786", "tcp://[::1]:8786", "local", "local:16", ""])
def test_forms_of_clusters(form: str) -> None:
    config = DaskConfig(dask=form)
    assert config.is_local == form.startswith("local")
    assert config.num_local == (16 if form == "local:16" else None)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"dask": "scheduler:8786"}, r"dask is 'scheduler:8786', expected tcp://HOST:PORT.*local or local:N"),
        ({"dask": "local", "dask_memory": "much"}, "dask_memory is 'much', expected a size"),
        ({"dask": "tcp://a:1", "dask_memory": "4GB"}, "'4GB', but it applies to local workers only"),
        ({"dask_timeout_s": 0}, "dask_timeout_s is 0, expected a finite number above 0"),
    ],
)
def test_choice_out_of_range_is_refused(choice: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DaskConfig(**choice)  # type: ignore[arg-type]


def test_results_come_in_the_order_of_the_tasks_and_the_share_rises_to_one(pool: Pool) -> None:
    shares: list[float] = []
    assert pool.map(double, range(20), shares.append) == [2 * number for number in range(20)]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_collection_is_computed_and_what_is_not_lazy_stays(pool: Pool) -> None:
    parts = [dask.delayed(pow)(number, 2) for number in range(10)]  # type: ignore[attr-defined]
    shares: list[float] = []
    assert pool.compute(dask.delayed(sum)(parts), shares.append) == 285  # type: ignore[attr-defined]
    assert shares[-1] == 1.0
    assert pool.compute(None, shares.append) is None


def test_workers_of_this_machine_have_what_nvtabular_needs_and_require_the_certificate(tmp_path: Path) -> None:
    """Who may could run code: other users of the machine reach the port, and do not have this run's certificate."""
    with open_pool(DaskConfig(dask="local:1", dask_timeout_s=600), tmp_path) as pool:
        # Also where the first task that a worker is given is one of NVTabular's own.
        is_imported = dask.delayed(lambda: "rankline.workflows.nvt.compat" in sys.modules)()  # type: ignore[attr-defined]
        assert pool.compute(is_imported, lambda _: None)
        address = pool._client.scheduler.address  # type: ignore[attr-defined]
        assert address.startswith("tls://127.0.0.1:")
        with pytest.raises(OSError, match="closed|reset"):
            Client(address.replace("tls", "tcp"), timeout=60, set_as_default=False)
        with pytest.raises(OSError, match="certificate does not match"):
            Client(address, security=Security.temporary(), timeout=60, set_as_default=False)


def test_error_of_a_task_is_raised_once_no_task_runs(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 7 is no row"):
        pool.map(begin, [(tmp_path, number) for number in range(50)], lambda _: None)
    left = {path.name for path in tmp_path.iterdir()}
    begun = {name for name in left if not name.endswith("ended")}
    assert {name for name in begun if f"{name} ended" not in left} == {"0"}
    assert len(begun) < 50


def test_task_that_ran_into_a_timeout_of_its_own_ends_the_work(pool: Pool) -> None:
    with pytest.raises(TimeoutError, match="^disk$"):
        pool.map(time_out, range(4), lambda _: None)


def test_scheduler_that_does_not_answer_is_named_after_a_bounded_wait(tmp_path: Path) -> None:
    with (
        pytest.raises(
            ClusterError, match=r"no Dask scheduler responded at tcp://127\.0\.0\.1:1 within 0\.5 s .*Start one"
        ),
        open_pool(DaskConfig(dask="tcp://127.0.0.1:1", dask_timeout_s=0.5), tmp_path),
    ):
        raise AssertionError


def test_scheduler_that_ends_ends_the_wait_for_its_answer(tmp_path: Path) -> None:
    with cluster_of(1) as cluster:
        config = DaskConfig(dask=cluster.scheduler_address, dask_timeout_s=3600)
        with open_pool(config, tmp_path) as pool:
            end = Timer(0.5, cluster.close)
            end.start()
            with pytest.raises(ClusterError, match=rf"{config.dask} exited or does not respond.*run this again"):
                pool._result_of(asyncio.sleep, 3600)  # type: ignore[attr-defined]
            end.join()


def test_scheduler_without_workers_is_named_after_a_bounded_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Client.wait_for_workers
    monkeypatch.setattr(Client, "wait_for_workers", lambda client, number, timeout: wait(client, number, timeout=0.1))
    with cluster_of(0) as cluster:
        config = DaskConfig(dask=cluster.scheduler_address, dask_timeout_s=600)  # to connect, which may take a while
        message = rf"{config.dask} had no workers for 600 s\. Start some with `dask worker {config.dask} --nthreads 1`"
        with pytest.raises(ClusterError, match=message), open_pool(config, tmp_path):
            raise AssertionError
