"""Execution of `prepare` on an existing Dask cluster or one started on this machine.

Only paths, statistics and the fitted workflow are sent over the network. The raw files and the output directory must be
on a file system that all workers see under the same paths. Before the work starts, `open_pool` verifies this and that
all workers run the same software as this process. If a worker dies, Dask assigns its tasks to another worker.

Anyone who can connect to a scheduler can run code on its workers: keep the cluster in a private network, or use
certificates. Workers on this machine get temporary certificates.
"""

import asyncio
import logging
import platform
import queue
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask
from distributed import Client, Future, KilledWorker, LocalCluster
from distributed.comm.core import CommClosedError
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.diagnostics.progressbar import ProgressBar
from distributed.security import Security

from rankline.workflows.core.errors import ClusterError
from rankline.workflows.core.optional_packages import installed_versions
from rankline.workflows.preprocess.config import DaskConfig
from rankline.workflows.preprocess.executor import Pool, Report, Result, Task
from rankline.workflows.storage.artifacts import code_fingerprint

_PACKAGES = ("rankline", "nvtabular", "merlin-core", "dask", "distributed", "pandas", "numpy", "pyarrow")
_CODE = "Rankline's code"
# A terminal sends Ctrl-C to workers too. The default handler ends them immediately and silently.
_END_ON_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)"
# Disable most of Dask's monitoring: there is no dashboard, and it would run up to a hundred times a second per process.
_UNOBSERVED = {
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.profile.enabled": False,
}
_TIMEOUTS = (TimeoutError, asyncio.TimeoutError, FutureTimeoutError)  # one class from Python 3.11 on
_STOP_S = 30.0  # time for workers to stop
_LOOK_S = 1.0  # interval between checks for running workers


@contextmanager
def open_pool(config: DaskConfig, shared: Path) -> Iterator[Pool]:
    """Connect to a Dask cluster or start a local one, and yield its workers as a `Pool`. Local workers stop on exit.

    Raises:
        ClusterError: the scheduler does not respond or has no workers, or a worker runs other software or cannot see
            `shared`.
    """
    shared = shared.resolve()
    shared.mkdir(parents=True, exist_ok=True)
    with _cluster(config, shared) as (address, client):
        pool = _Workers(address, client, config.dask_timeout_s)
        pool.check(shared)
        try:
            yield pool
        finally:
            pool.forget()


@contextmanager
def _cluster(config: DaskConfig, shared: Path) -> Iterator[tuple[str, Client]]:
    if not config.is_local:
        with _connected(config, config.dask, None) as client:
            yield config.dask, client
        return
    # Anyone who can connect to a scheduler can run code, and other users of this machine can reach its ports. Only
    # connections with a certificate are accepted. It is created for this run and never written to disk.
    security = Security.temporary()  # uses cryptography, a dependency of MLflow
    # Spill data next to the prepared data, where there is room; the system's temporary directory may be in memory.
    with TemporaryDirectory(prefix=".dask.", dir=shared) as scratch, _quiet(), dask.config.set(_UNOBSERVED):
        try:
            cluster = LocalCluster(
                n_workers=config.num_local,
                protocol="tls",
                security=security,
                threads_per_worker=1,  # pandas holds the GIL
                memory_limit=config.dask_memory,
                local_directory=scratch,
                scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},  # any free port
                silence_logs=logging.CRITICAL,
                env={"PYTHONWARNINGS": "ignore"},
                preload=[_END_ON_CTRL_C],
            )
        except (OSError, RuntimeError, *_TIMEOUTS) as error:
            raise ClusterError(f"Dask workers could not be started on this machine: {error}.") from None
        try:
            with _connected(config, cluster.scheduler_address, security) as client:
                yield config.dask, client
        finally:
            cluster.close(timeout=_STOP_S)


@contextmanager
def _connected(config: DaskConfig, address: str, security: Security | None) -> Iterator[Client]:
    timeout_s = config.dask_timeout_s
    with _quiet():
        try:
            client = Client(address, timeout=timeout_s, set_as_default=False, security=security)
        except (OSError, ValueError, *_TIMEOUTS) as error:  # ValueError: the server is not a Dask scheduler
            raise ClusterError(
                f"no Dask scheduler responded at {address} within {timeout_s:g} s ({_cause_of(error)}). Start one "
                "with `dask scheduler`, or fix the address."
            ) from None
        try:
            try:
                client.wait_for_workers(1, timeout=timeout_s)
            except _TIMEOUTS:
                raise ClusterError(
                    f"the Dask scheduler at {address} had no workers for {timeout_s:g} s. Start some with "
                    f"`dask worker {address} --nthreads 1`."
                ) from None
            yield client
        finally:
            client.close(timeout=_STOP_S)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Dask's log messages about connections, because failures are reported through the results."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in ("distributed", "tornado")]
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _cause_of(error: BaseException) -> str:
    """Return the innermost non-empty message in an exception's cause chain."""
    said = str(error) or type(error).__name__
    while error.__cause__ is not None:
        error = error.__cause__
        said = str(error) or said
    return said.rstrip(".")


class _Workers:
    """A `Pool` that runs tasks on the workers of a cluster. Progress counts only finished tasks."""

    def __init__(self, address: str, client: Client, timeout_s: float) -> None:
        self._address, self._timeout_s = address, timeout_s
        self._client: Any = client

    def map(self, function: Any, tasks: Sequence[Task], report: Report) -> list[Result]:
        # A function may hold a workflow with large tables: it is sent once, and workers pass it on.
        sent = self._client.submit(_itself, function, pure=False)
        futures = self._client.map(_do, [sent] * len(tasks), tasks, pure=False)
        results: dict[Future, Result] = {}
        with self._stopping(futures):
            for future, result in self._as_they_end(futures):
                results[future] = result
                report(len(results) / len(tasks))
        return [results[future] for future in futures]

    def compute(self, collection: Any, report: Report) -> Any:
        if not hasattr(collection, "__dask_graph__"):  # not a lazy collection
            return collection
        self._within(self._client._register_worker_plugin, _Upstream(), _Upstream.name, _Upstream.idempotent)
        future = self._client.compute(collection)
        with self._stopping([future]):
            bar = _Bar(future, self._client.scheduler.address, report)
            self._client.loop.add_callback(bar.listen)
            ((_, result),) = self._as_they_end([future])
        report(1.0)
        return result

    def check(self, shared: Path) -> None:
        """Check that the scheduler and the workers run the same software, and that workers see the shared directory."""
        here = software()
        found = {f"scheduler {self._address}": self._on_scheduler(software)}
        found |= {f"worker {worker}": there for worker, there in self._on_workers(software).items()}
        for who, there in found.items():
            if isinstance(there, Exception):
                raise ClusterError(
                    f"the Dask {who} cannot run Rankline ({_cause_of(there)}). Start it in an environment with "
                    "this version of Rankline installed."
                )
            others = [
                f"{name} {there.get(name)}, not {value}" for name, value in here.items() if there.get(name) != value
            ]
            if others:
                raise ClusterError(f"the Dask {who} has {'; '.join(others)}. Install the same versions everywhere.")
        token = secrets.token_hex()
        with TemporaryDirectory(prefix=".dask.", dir=shared) as directory:
            path = Path(directory) / "token"
            path.write_text(token, encoding="ascii")
            for worker, there in self._on_workers(Path.read_text, path, "ascii").items():
                if there != token:
                    raise ClusterError(
                        f"the Dask worker {worker} cannot access {shared} on this machine. Pass a --work-dir that "
                        "all workers can access under the same path."
                    )

    def forget(self) -> None:
        """Release the data that workers cache for this job, because the workers may outlive it."""
        with suppress(ClusterError, ValueError):  # ValueError: nothing was computed, so the plugin is not registered
            self._within(self._client._unregister_worker_plugin, _Upstream.name)
        with suppress(ClusterError):
            self._on_workers(_forget)

    def _on_workers(self, function: Any, *args: Any) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._within(self._client._run, function, *args, on_error="return")
        return found

    def _on_scheduler(self, function: Any) -> Any:
        try:
            return self._within(self._client._run_on_scheduler, function)
        except ClusterError:
            raise
        except Exception as error:  # any error of the scheduler
            return error

    def _within(self, method: Any, *args: Any, **options: Any) -> Any:
        try:
            return self._result_of(method, *args, **options)
        except _TIMEOUTS:
            raise ClusterError(
                f"the Dask cluster at {self._address} did not respond within {self._timeout_s:g} s."
            ) from None
        except (OSError, CancelledError):  # a broken or refused connection
            raise self._lost() from None

    def _result_of(self, method: Any, *args: Any, **options: Any) -> Any:
        """Return the result of a Dask client coroutine, and stop waiting immediately if the scheduler exits.

        Besides errors of the coroutine, raises ClusterError if the scheduler ends, and TimeoutError.
        """
        self._check_running()
        asked = asyncio.run_coroutine_threadsafe(method(*args, **options), self._client.loop.asyncio_loop)
        until_s = time.monotonic() + self._timeout_s
        try:
            while not wait([asked], timeout=min(_LOOK_S, self._timeout_s)).done:
                self._check_running()
                if time.monotonic() > until_s:
                    raise TimeoutError
            return asked.result()
        finally:
            asked.cancel()

    def _as_they_end(self, futures: Sequence[Future]) -> Iterator[tuple[Future, Any]]:
        """Yield each future with its result, in order of completion. Errors of tasks are raised unchanged.

        Raises:
            ClusterError: a task killed its workers, no workers are left, or the scheduler ended.
        """
        ended: queue.SimpleQueue[Future] = queue.SimpleQueue()
        for future in futures:
            future.add_done_callback(ended.put)
        num_left, last_seen_s = len(futures), time.monotonic()
        while num_left:
            self._check_running()
            try:
                future = ended.get(timeout=_LOOK_S)
                yield future, self._result_of_task(future)
                num_left, last_seen_s = num_left - 1, time.monotonic()
            except queue.Empty:
                if self._within(self._client.scheduler.identity)["workers"]:
                    last_seen_s = time.monotonic()
                elif time.monotonic() - last_seen_s > self._timeout_s:
                    raise ClusterError(
                        f"the Dask scheduler at {self._address} lost its last worker, and no new one connected "
                        f"within {self._timeout_s:g} s. Existing data is unchanged. Start workers, and run the "
                        "command again."
                    ) from None
            except _TIMEOUTS:
                if future.status == "error":  # raised by the task itself
                    raise
                future.add_done_callback(ended.put)  # the worker with the result died: another worker repeats the task

    def _result_of_task(self, future: Future) -> Any:
        try:
            return self._result_of(future._result)
        except KilledWorker as error:
            raise ClusterError(
                f"one task killed {error.allowed_failures + 1} workers of the Dask cluster at {self._address} "
                "in a row, usually because they ran out of memory. Give each worker more memory, or use fewer "
                "workers."
            ) from None
        except (CancelledError, CommClosedError):
            raise self._lost() from None

    def _check_running(self) -> None:
        if self._client.status != "running":
            raise self._lost()

    def _lost(self) -> ClusterError:
        return ClusterError(
            f"the Dask scheduler at {self._address} exited or does not respond. Existing data is unchanged; run "
            "this again."
        )

    @contextmanager
    def _stopping(self, futures: Sequence[Future]) -> Iterator[None]:
        """Cancel pending tasks if the block fails, and wait for running tasks, because they write files."""
        try:
            yield
        except BaseException:
            if self._client.status == "running":
                with suppress(Exception):  # keep the original exception
                    self._result_of(self._client._cancel, futures, force=True)
                    self._on_workers(_idle)
            raise


class _Upstream(WorkerPlugin):
    """A plugin that imports the NVTabular compatibility layer, which NVTabular's own tasks need, on every worker."""

    name = "rankline-upstream"
    idempotent = True  # do not set up again on workers that already have the plugin

    def setup(self, worker: Any) -> None:  # noqa: ARG002  (the same on every worker)
        import rankline.workflows.nvt.compat  # noqa: F401


class _Bar(ProgressBar):
    def __init__(self, future: Future, scheduler: str, report: Report) -> None:
        super().__init__([future], scheduler=scheduler)  # type: ignore[no-untyped-call]
        self._report = report

    def _draw_bar(self, remaining: int, all: int, **_: Any) -> None:
        self._report(1 - remaining / all if all else 1.0)


def _do(function: Any, task: Any) -> Any:
    from rankline.workflows.nvt.compat import (
        quiet_nvtabular,  # imported here, so that workers without NVTabular can still report their software
    )

    with quiet_nvtabular():
        return function(task, lambda _share: None)


def _itself(function: Any) -> Any:
    return function


def software() -> dict[str, str]:
    """Return a dict from name to version of software that must match across the cluster to produce identical data."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        **installed_versions(_PACKAGES),
        _CODE: code_fingerprint(Path(__file__).parents[1]),
    }


def _forget(dask_worker: Any) -> None:
    vars(dask_worker).pop("worker_cache", None)


async def _idle(dask_worker: Any) -> None:
    while dask_worker.state.all_running_tasks:
        await asyncio.sleep(0.05)
