"""Measures a server with MLPerf's LoadGen over grpcio, and prints the 50th and 99th percentile of the latency in ms.

Usage: loadgen.py URL MODEL ROWS RATE SECONDS DIRECTORY

ROWS is a Parquet file whose rows are sent one by one. A RATE of 0 is LoadGen's single-stream scenario, another one its
server scenario. LoadGen's logs are written to DIRECTORY.
"""

import json
import re
import sys
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import mlperf_loadgen as lg  # type: ignore[import-not-found]
import pyarrow.parquet as pq

from bench.harness.interleaved import laid_out
from rankline.serving.loadtest.generator.transport import INFER

_WARMUP_CALLS = 500
_PERCENTILE = re.compile(r"(50|99)\.00 percentile latency \(ns\) *: *(\d+)")


def main(url: str, model: str, rows: str, rate: str, seconds: str, directory: str) -> None:
    messages = laid_out(url, model, pq.read_table(rows), (1,))[1].messages
    with grpc.insecure_channel(url) as channel:
        ask = channel.unary_unary(INFER)
        for number in range(_WARMUP_CALLS):
            ask(messages[number % len(messages)])
        log = lg.LogSettings()
        log.log_output.outdir = directory
        library = lg.ConstructQSL(len(messages), len(messages), lambda _: None, lambda _: None)

        def issue(samples: list[lg.QuerySample]) -> None:
            for sample in samples:
                call = ask.future(messages[sample.index])
                call.add_done_callback(lambda done, key=sample.id: _complete(done, key))

        lg.StartTestWithLogSettings(
            lg.ConstructSUT(issue, lambda: None), library, _settings(float(rate), float(seconds)), log
        )
    summary = (Path(directory) / "mlperf_log_summary.txt").read_text(encoding="utf-8")
    print(json.dumps({f"p{level}_ms": int(value) / 1e6 for level, value in _PERCENTILE.findall(summary)}))


def _complete(done: grpc.Future, key: int) -> None:
    done.result()
    lg.QuerySamplesComplete([lg.QuerySampleResponse(key, 0, 0)])


def _settings(rate: float, seconds: float) -> lg.TestSettings:
    settings = lg.TestSettings()
    settings.mode = lg.TestMode.PerformanceOnly
    settings.scenario = lg.TestScenario.Server if rate else lg.TestScenario.SingleStream
    settings.server_target_qps = rate or 1.0
    settings.min_query_count = 1
    settings.min_duration_ms = settings.max_duration_ms = round(1e3 * seconds)
    return settings


if __name__ == "__main__":
    main(*sys.argv[1:])
