"""wide: what tables of 100 to 900 columns take to export, and to score one row of.

Two thirds of the columns are floats, the rest whole numbers; a seventh lacks values. Each table goes through the
commands that somebody types. One row is then scored by the library's client, by a message of tritonclient that is
built once, and by the same message sent to the ensemble's scoring step alone, which leaves out what Triton's ensemble
scheduler costs.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import numpy as np
import pandas as pd
from tritonclient.grpc import service_pb2_grpc

from bench.report import Report, Turn, median_ratio, medians, scratch_directory, take_turns
from serving.client import Client
from serving.ensemble import ExportedEnsemble
from serving.server import EmbeddedServer
from serving.supervise import config_of

WIDTHS = (100, 300, 900)
CLIENT, MESSAGE, STEP = "client", "message", "step alone"
_ROWS = 2_000
_REQUESTS_PER_TURN = 100


def run(repeats: int, *, widths: tuple[int, ...] = WIDTHS) -> Report:
    """Export each table once, then score one row in turns.

    Args:
        repeats: turns of each side.
        widths: columns of the tables, from few to many.
    """
    exports_s: dict[int, float] = {}
    with scratch_directory() as directory, ExitStack() as stack:
        sides: dict[str, Turn] = {}
        for width in widths:
            exports_s[width], ensemble, row = _export(directory / str(width), width)
            sides |= stack.enter_context(_served(ensemble, row, width))
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
    """Seconds of `rankline export`, what it made, and a row to score."""
    directory.mkdir()
    rng = np.random.default_rng(0)
    names = [f"f_{number:03d}" for number in range(width)]
    table = pd.DataFrame(rng.normal(size=(_ROWS, width)).round(4), columns=names)
    table[names[2 * width // 3 :]] = rng.integers(0, 50, (_ROWS, width - 2 * width // 3))
    row = {name: [table[name].iloc[0].item()] for name in names}
    table[names[::7]] = table[names[::7]].astype(object).mask(rng.random((_ROWS, len(names[::7]))) < 0.05)
    label = (table[names[1]] + rng.normal(size=_ROWS) > 0).astype(int)
    table.assign(label=label).to_csv(directory / "wide.csv", index=False)
    for words in (
        ("init", "wide.csv", "--label", "label", "--output", "wide.yaml"),
        ("prepare", "wide.yaml"),
        ("train", "wide.yaml", "--epochs", "1"),
        ("export", "wide.yaml"),
    ):
        begin = time.perf_counter()
        command = [str(Path(sys.executable).with_name("rankline")), *words]
        subprocess.run(command, cwd=directory, check=True, capture_output=True)
    return time.perf_counter() - begin, ExportedEnsemble.load(directory / "model_repository/wide"), row


@contextmanager
def _served(ensemble: ExportedEnsemble, row: dict[str, list[object]], width: int) -> Iterator[dict[str, Turn]]:
    """Side → what scores the row a hundred times, and returns the median in milliseconds."""
    with (
        EmbeddedServer(config_of(ensemble)) as server,
        Client(server.endpoints.grpc, ensemble.name) as client,
        grpc.insecure_channel(server.endpoints.grpc) as channel,
    ):
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        (message,) = client.prepare(row).messages
        sides: dict[str, Turn] = {
            f"{CLIENT}, {width}": partial(_p50_ms, lambda: client.predict(row)),
            f"{MESSAGE}, {width}": partial(_p50_ms, lambda: infer(message)),
        }
        if "_score_v" in (step := ensemble.steps[-1]):  # else it takes encoded columns
            of_step = type(message)()
            of_step.CopyFrom(message)
            of_step.model_name = step
            del of_step.outputs[:]  # which the engine may call otherwise
            sides[f"{STEP}, {width}"] = partial(_p50_ms, lambda: infer(of_step))
        yield sides


def _p50_ms(ask: Callable[[], object]) -> float:
    latencies_s = []
    for _ in range(_REQUESTS_PER_TURN):
        begin = time.perf_counter()
        ask()
        latencies_s.append(time.perf_counter() - begin)
    return float(np.median(latencies_s)) * 1e3
