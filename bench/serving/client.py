"""client: overhead and maximum rate of the client, and the reproducibility of its measurements.

The server runs on this machine, with a model that returns its input. The load generator's transports run closed loops,
as in a measurement. The library's `Client` sends one request at a time and `AsyncClient` several, each built anew with
`predict`, as in a program. With one request in flight, requests share no work, so the CPU time per request is an upper
bound. The rates are those of a closed loop, so every request is also answered, by a server on the same cores.

After that, the load generator measures the same load repeatedly, in a closed and in an open loop. Two successive runs
agree in a percentile if their confidence intervals overlap; pairs with an unbounded interval are not counted.
"agreement" covers all pairs and percentiles. Other load on the machine must be low: if it varies from run to run, no
interval reflects it.
"""

import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from multiprocessing.synchronize import Barrier
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa

from bench.harness.closed_loop import keep_in_flight
from bench.harness.report import Report, medians_of, scratch_directory
from rankline.serving.client import AsyncClient, Client
from rankline.serving.loadtest import identity
from rankline.serving.loadtest.config import LoadConfig
from rankline.serving.loadtest.generator.transport import TRANSPORTS
from rankline.serving.loadtest.generator.worker_pool import Workers, connect
from rankline.serving.loadtest.report.report import LoadResult
from rankline.serving.loadtest.runner import measure
from rankline.serving.loadtest.runs import Load
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig

MAX_PROCESSES = 4
NUM_RUNS = 20
SYNC, ASYNC = "Client", "AsyncClient"
PERCENTILES = ("p50", "p90", "p95", "p99")
_IN_FLIGHT = 32  # total over all processes
_RATE_PER_S = 500
_WARMUP_S = 0.5
_START_TIMEOUT_S = 120.0
_NUM_MESSAGES = 4_096


class Usage(NamedTuple):
    requests_per_s: float
    cpu_ms: float


Drive = Callable[[int, int], Usage]  # number of processes, total requests in flight


def run(repeats: int, *, turn_s: float = 3.0, num_runs: int = NUM_RUNS, run_s: float = 6.0) -> Report:
    with scratch_directory() as directory:
        identity.write_identity(directory)
        config = ServerConfig(repositories=(directory,), backends=(identity.BACKENDS,))
        with EmbeddedServer(config) as server:
            results = _costs(server.endpoints.grpc, repeats, turn_s)
            with Client(server.endpoints.grpc, identity.NAME) as client:
                closed = LoadConfig(warmup_s=_WARMUP_S, min_duration_s=run_s, time_limit_s=run_s)
                verdicts = {
                    "closed loop": _agreement(client, closed, num_runs),
                    "open loop": _agreement(client, replace(closed, rate=(_RATE_PER_S,)), num_runs),
                }
    agreed = [verdict for of_loop in verdicts.values() for of_level in of_loop.values() for verdict in of_level]
    # On a busy machine there may be no interval to compare, but measurements are still reported.
    ratios = {"agreement": statistics.fmean(agreed)} if agreed else {}
    shares = {loop: _shares(of_loop) for loop, of_loop in verdicts.items()}
    return Report(name="client", results={**results, **shares}, ratios=ratios)


def _costs(url: str, repeats: int, turn_s: float) -> dict[str, dict[str, float]]:
    turns: dict[str, dict[str, list[float]]] = {}
    with _drives(url, turn_s) as drives:
        for _ in range(repeats):
            for side, drive in drives.items():
                figures = turns.setdefault(side, {})
                figures.setdefault("cpu_ms_per_request", []).append(drive(1, 1).cpu_ms)
                for processes in (1, MAX_PROCESSES):
                    rate = drive(processes, _IN_FLIGHT).requests_per_s
                    figures.setdefault(f"offered_per_s@{processes}", []).append(rate)
    return medians_of(turns)


@contextmanager
def _drives(url: str, turn_s: float) -> Iterator[Mapping[str, Drive]]:
    """Yield the clients that can drive the server, by name; their processes idle between turns."""
    with Client(url, identity.NAME) as client:
        numbers = np.random.default_rng(0).integers(0, 2**62, _NUM_MESSAGES)
        messages = [client.prepare({"x": [number]}).messages[0].SerializeToString() for number in numbers]
    spawn = multiprocessing.get_context("spawn")  # a fork would copy locks held by gRPC's threads
    with (
        Workers(MAX_PROCESSES) as workers,
        ProcessPoolExecutor(MAX_PROCESSES, spawn, _wait_for_all, (spawn.Barrier(MAX_PROCESSES),)) as pool,
    ):
        for begun in [pool.submit(os.getpid) for _ in range(MAX_PROCESSES)]:
            begun.result()
        yield {
            **{name: _generator(workers, url, name, messages, turn_s) for name in TRANSPORTS},
            SYNC: _library(pool, url, turn_s, _ask_in_turn),
            ASYNC: _library(pool, url, turn_s, _ask_together),
        }


def _generator(workers: Workers, url: str, transport: str, messages: Sequence[bytes], turn_s: float) -> Drive:
    def drive(processes: int, in_flight: int) -> Usage:
        load = Load(batch_size=1, concurrency=in_flight)
        run, _ = keep_in_flight(
            transport,
            workers,
            partial(connect, transport, url),
            messages,
            load,
            turn_s=turn_s,
            warmup_s=_WARMUP_S,
            processes=processes,
        )
        return Usage(requests_per_s=run.whole.num_answered / run.duration_s, cpu_ms=run.client_cost.cpu_ms)

    return drive


def _wait_for_all(barrier: Barrier) -> None:
    barrier.wait(_START_TIMEOUT_S)


def _library(pool: ProcessPoolExecutor, url: str, turn_s: float, ask: "Ask") -> Drive:
    def drive(processes: int, in_flight: int) -> Usage:
        asked = [pool.submit(ask, url, turn_s, in_flight // processes) for _ in range(processes)]
        usages = [future.result() for future in asked]
        rate = sum(usage.requests_per_s for usage in usages)
        cpu_ms = sum(usage.cpu_ms * usage.requests_per_s for usage in usages) / rate
        return Usage(requests_per_s=rate, cpu_ms=cpu_ms)

    return drive


Ask = Callable[[str, float, int], Usage]  # url, length of the turn in s, requests in flight


def _ask_in_turn(url: str, turn_s: float, _: int) -> Usage:
    """Send one request after another, regardless of the number of requests in flight."""
    with Client(url, identity.NAME) as client:

        def ask_for(duration_s: float) -> int:
            number, end_s = 0, time.perf_counter() + duration_s
            while not number or time.perf_counter() < end_s:
                client.predict({"x": [number]})
                number += 1
            return number

        ask_for(_WARMUP_S)
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        return _usage(ask_for(turn_s), begin_s, cpu_s)


def _ask_together(url: str, turn_s: float, in_flight: int) -> Usage:
    return asyncio.run(_run_tasks(url, turn_s, in_flight))


async def _run_tasks(url: str, turn_s: float, in_flight: int) -> Usage:
    async with AsyncClient(url, identity.NAME) as client:

        async def ask_until(end_s: float) -> int:
            number = 0
            while not number or time.perf_counter() < end_s:
                await client.predict({"x": [number]})
                number += 1
            return number

        async def ask_for(duration_s: float) -> int:
            end_s = time.perf_counter() + duration_s
            return sum(await asyncio.gather(*(ask_until(end_s) for _ in range(in_flight))))

        await ask_for(_WARMUP_S)
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        return _usage(await ask_for(turn_s), begin_s, cpu_s)


def _usage(num_answered: int, begin_s: float, cpu_s: float) -> Usage:
    return Usage(
        requests_per_s=num_answered / (time.perf_counter() - begin_s),
        cpu_ms=(time.process_time() - cpu_s) / num_answered * 1e3,
    )


Verdicts = Mapping[str, Sequence[bool]]  # percentile → whether each pair agrees


def _agreement(client: Client, config: LoadConfig, num_runs: int) -> Verdicts:
    rows = pa.table({"x": np.random.default_rng(0).integers(0, 2**62, _NUM_MESSAGES)})
    runs = [measure(client, rows, (1,), config=config).bench[0] for _ in range(num_runs)]
    return {name: pairs_that_agree(runs, name) for name in PERCENTILES}


def pairs_that_agree(runs: Sequence[LoadResult], name: str) -> list[bool]:
    """Return whether the intervals overlap, for each pair of successive runs in which both are bounded."""
    verdicts = []
    for one, other in pairwise(run.metrics[f"{name}_ms"] for run in runs):
        if None not in (bounds := (one.low, one.high, other.low, other.high)):
            low, high, other_low, other_high = cast(tuple[float, ...], bounds)
            verdicts.append(low <= other_high and other_low <= high)
    return verdicts


def _shares(verdicts: Verdicts) -> dict[str, float]:
    judged = {name: of_level for name, of_level in verdicts.items() if of_level}
    return {
        **{f"agreement_{name}": statistics.fmean(of_level) for name, of_level in judged.items()},
        **{f"pairs_{name}": float(len(of_level)) for name, of_level in judged.items()},
    }
