"""soak --check-every N: is every answer right, for a long time, however the ensemble is laid out?

Each layout, with and without Triton's batcher, answers requests of several sizes at once while others are cancelled.
The expected scores are those of plan and model in this process. One repeat is a minute of each; the rates are low, so
that it may run beside other work.
"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy.typing as npt
import pyarrow as pa
from google.protobuf import json_format

from bench.models import make_model
from bench.report import Report, scratch_directory
from rankline import pipeline
from rankline.display import ERRORS, Stages
from rankline.recipes import recipe_named
from rankline.workspace import Workspace
from serving.benchmark.config import LoadConfig
from serving.benchmark.load import measure
from serving.benchmark.report import BenchmarkReport
from serving.benchmark.transport import INFER
from serving.client import Client
from serving.ensemble import ExportedEnsemble
from serving.export_config import ExportConfig
from serving.in_process import open_ensemble
from serving.server import EmbeddedServer
from serving.supervise import config_of
from workflows.beside import beside
from workflows.errors import ServerError

_MINUTE_S = 60.0
_LAYOUTS = {
    "fused, one instance": ExportConfig(fused=True, instances=1),
    "two steps, one instance each": ExportConfig(fused=False, instances=1),
    "two steps, three instances each": ExportConfig(fused=False, instances=3),
}
_RATES = {1: 120, 17: 40, 300: 20}  # rows of a request → requests per second
_CANCELLED_PER_S = 2.0
_CANCELLED_ROWS = 16_384
_LONGEST_CANCEL_S = 0.005  # before the answer: at that moment it may crash Triton 24.10 (server#7840)


def run(repeats: int, check_every: int) -> Report:
    """Measure each layout for `repeats` minutes; of the answers, each so many-th is compared.

    Raises:
        ServingError: an answer is wrong.
    """
    results: dict[str, dict[str, float]] = {}
    with scratch_directory() as directory:
        workspace = Workspace(recipe="movielens", root=directory, repository=directory / "ours")
        prepared, _ = make_model(workspace)
        rows = prepared.heldout().select(list(prepared.inputs))
        for name, config in _LAYOUTS.items():
            with Stages(["export"]) as stages:
                ensemble = pipeline.export(recipe_named("movielens"), config, prepared, workspace, stages)
            with open_ensemble(ensemble) as own:
                expected = own.predict(rows)
            for batching in ("with", "without"):
                load = LoadConfig(
                    rate=(1,),
                    check_every=check_every,
                    min_requests=1,
                    min_duration_s=_MINUTE_S * repeats,
                    time_limit_s=_MINUTE_S * repeats,
                )
                results[f"{name}, {batching} batching"] = _soak(ensemble, rows, expected, load, batching == "with")
    return Report(
        name="soak",
        results=results,
        ratios={name: max(figures[name] for figures in results.values()) for name in ("max_abs_error", "crashes")},
    )


def _soak(
    ensemble: ExportedEnsemble, rows: pa.Table, expected: npt.NDArray[Any], load: LoadConfig, is_batching: bool
) -> dict[str, float]:
    """The figures of one layout."""
    with EmbeddedServer(config_of(ensemble)) as server:
        if not is_batching:
            for step in ensemble.steps:
                config = ensemble.step_config(step)
                config.ClearField("dynamic_batching")
                server.load(step, json_format.MessageToJson(config, preserving_proto_field_name=True))
            server.load(ensemble.name, ensemble.config)

        def ask(batch_size: int) -> BenchmarkReport | None:
            config = replace(load, rate=(_RATES[batch_size],), seed=batch_size)
            try:
                with Client(server.endpoints.grpc, ensemble.name) as client:
                    return measure(
                        client, rows, [batch_size], config=config, expected=expected, version=ensemble.version
                    )
            except ServerError:  # nobody answers
                if server.why_ended() is None:
                    raise
                return None

        # A wrong answer is raised; that the client is late on a busy machine is of no interest here.
        with _cancelling(server.endpoints.grpc, ensemble.name, rows) as cancelled, ThreadPoolExecutor(3) as pool:
            reports = [report for report in pool.map(ask, _RATES) if report is not None]
        if reason := server.why_ended():
            ERRORS.print(reason, markup=False)
    bench = [result for report in reports for result in report.bench]
    return {
        "requests": float(sum(result.num_requests for result in bench)),
        "scores_compared": float(sum(report.num_checked for report in reports)),
        "max_abs_error": max((report.max_abs_error or 0.0 for report in reports), default=0.0),
        "errors": float(sum(sum(result.errors.values()) for result in bench)),
        "cancelled": float(len(cancelled)),
        "crashes": float(reason is not None),
    }


@contextmanager
def _cancelling(url: str, name: str, rows: pa.Table) -> Iterator[Sequence[float]]:
    """Send requests that are cancelled about when they are answered; yields when, of each."""
    done, rng = list[float](), random.Random(0)
    with Client(url, name) as client:
        message = client.prepare(rows.slice(0, _CANCELLED_ROWS)).messages[0].SerializeToString()

    def send(stop: threading.Event) -> None:
        with grpc.insecure_channel(url) as channel:
            call = channel.unary_unary(INFER)
            while not stop.wait(1 / _CANCELLED_PER_S):
                future = call.future(message)
                time.sleep(rng.uniform(0, _LONGEST_CANCEL_S))
                future.cancel()
                done.append(time.monotonic())

    with beside(send):
        yield done
