"""wide: time to export tables of 100 to 900 columns, and to score one of their rows.

Two thirds of the columns are floats, the rest integers; a seventh have missing values. A row is scored by the library's
client, by a prebuilt tritonclient message, and by the same message sent directly to the scoring step, which bypasses
Triton's ensemble scheduler.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa
from tritonclient.grpc import service_pb2_grpc

from bench.harness.report import Report, Turn, median_ratio, medians, p50_ms, scratch_directory, take_turns
from rankline.api import verbs as api
from rankline.serving.client import Client
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.embedded import EmbeddedServer
from rankline.serving.server.supervisor import config_of

WIDTHS = (100, 300, 900)
CLIENT, MESSAGE, STEP = "client", "message", "step alone"
_ROWS = 2_000
_REQUESTS_PER_TURN = 100


def run(repeats: int, *, widths: tuple[int, ...] = WIDTHS) -> Report:
    exports_s: dict[int, float] = {}
    with scratch_directory() as directory, ExitStack() as stack:
        sides: dict[str, Turn] = {}
        for width in widths:
            exports_s[width], ensemble, row = _export(directory / str(width), width)
            sides |= stack.enter_context(_served(ensemble, row, width))
        gc.collect()
        gc.freeze()  # exclude objects of training and export, which a client process would not have
        rates = take_turns(sides, repeats)
    results = {f"{width} columns": {"export_s": seconds} for width, seconds in exports_s.items()}
    results |= medians(rates, "p50_ms")
    most, growth = widths[-1], widths[-1] / widths[0]
    return Report(
        name="wide",
        results=results,
        ratios={
            "export_s": exports_s[most],
            "export_growth_over_columns": exports_s[most] / exports_s[widths[0]] / growth,
            "client_p50_ms": results[f"{CLIENT}, {most}"]["p50_ms"],
            "message_p50_ms": results[f"{MESSAGE}, {most}"]["p50_ms"],
            "message_over_step": median_ratio(rates, f"{MESSAGE}, {most}", f"{STEP}, {most}"),
        },
    )


def _export(directory: Path, width: int) -> tuple[float, ExportedEnsemble, dict[str, list[object]]]:
    """Return the seconds that the export took, the ensemble, and a row to score."""
    rng = np.random.default_rng(0)
    columns: dict[str, pa.Array] = {}
    for number in range(width):
        is_float, lacks_values = number < 2 * width // 3, number % 7 == 0
        values = rng.normal(size=_ROWS) if is_float else rng.integers(0, 50, _ROWS)
        columns[f"f_{number:03d}"] = pa.array(values, mask=rng.random(_ROWS) < 0.05 if lacks_values else None)
    row = {name: [next(value for value in column.to_pylist() if value is not None)] for name, column in columns.items()}
    label = np.nan_to_num(columns["f_001"].to_numpy(zero_copy_only=False)) + rng.normal(size=_ROWS) > 0
    table = pa.table({**columns, "label": label.astype(np.int64)})
    dataset = api.Dataset(table, label="label", name="wide", work_dir=directory)
    api.prepare(dataset, work_dir=directory)
    api.train(dataset, work_dir=directory, model="mlp", epochs=1)
    begin = time.perf_counter()
    ensemble = api.export(dataset, work_dir=directory, repository=directory / "repository")
    return time.perf_counter() - begin, ensemble, row


@contextmanager
def _served(ensemble: ExportedEnsemble, row: dict[str, list[object]], width: int) -> Iterator[dict[str, Turn]]:
    """Serve an ensemble, and yield turns that score the row repeatedly and return the median latency in ms."""
    with (
        EmbeddedServer(config_of(ensemble)) as server,
        Client(server.endpoints.grpc, ensemble.name) as client,
        grpc.insecure_channel(server.endpoints.grpc) as channel,
    ):
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        (message,) = client.prepare(row).messages
        sides: dict[str, Turn] = {
            f"{CLIENT}, {width}": partial(p50_ms, lambda: client.predict(row), _REQUESTS_PER_TURN),
            f"{MESSAGE}, {width}": partial(p50_ms, lambda: infer(message), _REQUESTS_PER_TURN),
        }
        if "_score_v" in (step := ensemble.steps[-1]):  # else the step takes encoded columns
            of_step = type(message)()
            of_step.CopyFrom(message)
            of_step.model_name = step
            del of_step.outputs[:]  # the engine may use other output names
            sides[f"{STEP}, {width}"] = partial(p50_ms, lambda: infer(of_step), _REQUESTS_PER_TURN)
        yield sides
