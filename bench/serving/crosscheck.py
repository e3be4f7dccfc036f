"""crosscheck: the latency of one server, as measured by Rankline's load test, perf_analyzer and MLPerf's LoadGen.

The tools take turns with the demo's model and the same rows, one row per request: with one request in flight (LoadGen's
single-stream scenario), and with requests at random times (Poisson; LoadGen's server scenario). Rankline's load test
and LoadGen count latency from the time at which a request was due, perf_analyzer from when it was sent. perf_analyzer
sends over gRPC's C++ library, LoadGen over its Python library, and Rankline's load test over HTTP/2 of its own or over
the Python library; so compare LoadGen with `rankline, grpcio`. The ratios are those of the two tools.

The wheel of perf_analyzer needs glibc 2.38. On an older Debian it runs with the libraries of a newer one, which
`scripts/debian-tree.sh` installs beside the system, as root.
"""

import csv
import json
import math
import os
import platform
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness.fixtures import make_demo
from bench.harness.report import Report, median_ratio, medians_of, scratch_directory
from bench.peers.processes import output_of
from rankline.serving.client import Client
from rankline.serving.loadtest.config import LoadConfig
from rankline.serving.loadtest.runner import measure
from rankline.serving.server.embedded import EmbeddedServer
from rankline.serving.server.supervisor import config_of
from rankline.terminal.console import note
from rankline.workflows.core.errors import ConfigError

RATE_PER_S = 500
OURS, OURS_GRPCIO, PERF_ANALYZER, LOADGEN = "rankline", "rankline, grpcio", "perf_analyzer", "LoadGen"
_PERF_ANALYZER_PACKAGE, _LOADGEN_PACKAGE = "perf-analyzer==2.60.0", "mlcommons-loadgen==6.0.17"
_GLIBC = (2, 38)
_SUITE = "trixie"
_ROOT = Path(__file__).parents[2]
_SCRIPT = _ROOT / "bench" / "peers" / "loadgen.py"
_NUM_ROWS = 4_096
_STABILITY_PERCENT = 25  # on a shared machine, windows often differ by more than the default, 10


_Latencies = dict[str, float]
"""Mapping from metric to milliseconds."""
_Tool = Callable[[int], _Latencies]
"""Measures at a rate, or with one request in flight if it is 0."""


def run(repeats: int, *, seconds: float = 6.0) -> Report:
    turns: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    left_out: dict[str, str] = {}
    with scratch_directory() as directory:
        prepared, ensemble = make_demo(directory)
        rows = prepared.heldout().select(list(prepared.inputs)).slice(0, _NUM_ROWS).combine_chunks()
        with EmbeddedServer(config_of(ensemble)) as server, Client(server.endpoints.grpc, ensemble.name) as client:
            sides: dict[str, _Tool] = {
                OURS: partial(_load_test, client, rows, "http2", seconds),
                OURS_GRPCIO: partial(_load_test, client, rows, "grpcio", seconds),
            }
            for side, install in ((PERF_ANALYZER, _perf_analyzer), (LOADGEN, _loadgen)):
                try:
                    sides[side] = install(client, rows, directory / side, seconds)
                except ConfigError as error:
                    left_out[side] = str(error)
            for _, (side, tool) in product(range(repeats), sides.items()):
                try:
                    for rate in (0, RATE_PER_S) if side not in left_out else ():
                        for name, value in tool(rate).items():
                            turns[side][f"{name}@{f'{rate}/s' if rate else '1'}"].append(value)
                except ConfigError as error:
                    left_out[side] = str(error)
    for side, reason in left_out.items():
        note(f"{side} was left out: {reason}")
        turns[side] = {}
    return Report(name="crosscheck", results=medians_of(turns), ratios=_ratios(turns), left_out=left_out)


def _ratios(turns: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Return the ratio of each tool's latency to that of the load test, and the largest differences from 1."""
    ratios = {
        f"{tool.lower()}_{metric.replace('@', '_at_').replace('/', '_per_')}": median_ratio(
            {side: turns[side][metric] for side in (tool, ours)}, tool, ours
        )
        for tool, ours in ((PERF_ANALYZER, OURS), (LOADGEN, OURS_GRPCIO))
        for metric in turns[tool]
    }
    measured = {name: ratio for name, ratio in ratios.items() if not math.isnan(ratio)}
    differences = {
        f"{level}_difference": [abs(ratio - 1) for name, ratio in measured.items() if f"_{level}_" in name]
        for level in ("p50", "p99")
    }
    return {name: max(values) for name, values in differences.items() if values} | measured


def _load_test(client: Client, rows: pa.Table, transport: str, seconds: float, rate: int) -> _Latencies:
    config = LoadConfig(
        rate=(rate,) if rate else (), transport=transport, min_duration_s=seconds, time_limit_s=2 * seconds
    )
    (result,) = measure(client, rows, [1], config=config).bench
    return {name: result.value(name) or math.nan for name in ("p50_ms", "p99_ms")}


# --- The other tools


def _loadgen(client: Client, rows: pa.Table, directory: Path, seconds: float) -> _Tool:
    packages = _installed(_LOADGEN_PACKAGE, directory)
    pq.write_table(rows, directory / "rows.parquet")
    variables = {"PYTHONPATH": os.pathsep.join(map(str, (packages, _ROOT)))}

    def measured(rate: int) -> _Latencies:
        where = (client.url, client.schema.name, directory / "rows.parquet")
        printed = output_of([sys.executable, _SCRIPT, *where, rate, seconds, directory], variables=variables)
        found: _Latencies = json.loads(printed.splitlines()[-1])
        return found

    return measured


def _perf_analyzer(client: Client, rows: pa.Table, directory: Path, seconds: float) -> _Tool:
    program = _installed(_PERF_ANALYZER_PACKAGE, directory) / "perf_analyzer" / "bin" / "perf_analyzer"
    program.chmod(0o755)
    data = [{name: [value] for name, value in row.items()} for row in rows.to_pylist()]
    (directory / "rows.json").write_text(json.dumps({"data": data}), encoding="utf-8")
    where = ["-m", client.schema.name, "-u", client.url, "-i", "grpc", "--input-data", directory / "rows.json"]
    how = ["--measurement-interval", round(1e3 * seconds), "--percentile", 50, "-s", _STABILITY_PERCENT]
    command = [*_loader(), program, *where, *how, "-f", directory / "figures.csv"]

    def measured(rate: int) -> _Latencies:
        poisson = ["--request-rate-range", rate, "--request-distribution", "poisson"]
        output_of([*command, *(poisson if rate else ["--concurrency-range", 1])])
        with (directory / "figures.csv").open(encoding="utf-8") as lines:
            row = next(csv.DictReader(lines))
        return {f"p{level}_ms": float(row[f"p{level} latency"]) / 1e3 for level in (50, 99)}

    return measured


def _installed(package: str, directory: Path) -> Path:
    """Install a wheel, which pip might not choose for this machine's glibc, and return the path of its packages."""
    target = directory / "packages"
    uv = Path(sys.executable).with_name("uv")
    options = ["--quiet", "--no-deps", "--python-platform", "x86_64-manylinux_2_39", "--target", target]
    output_of([uv, "pip", "install", *options, package])
    return target


def _loader() -> list[str | Path]:
    """Return the command that runs a program with a newer glibc, or nothing if this machine's is new enough."""
    if tuple(int(part) for part in platform.libc_ver()[1].split(".")) >= _GLIBC:
        return []
    tree = Path(output_of(["sh", _ROOT / "scripts" / "debian-tree.sh", _SUITE]).strip())
    return [tree / "lib64" / "ld-linux-x86-64.so.2", "--library-path", tree / "usr" / "lib" / "x86_64-linux-gnu"]
