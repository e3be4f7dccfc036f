"""Benchmark one of the stack's servers: score the held-out rows for the AUC, then load-test the server with them.

    python -m rankline.serving.deploy.bench --url triton:8001 --model movielens --prepared work/movielens/prepared

This is `rankline bench` without the parts that need NVTabular and MLflow: nothing is logged, and the table goes to
standard output. The exit status is 1 if a measurement has a problem.
"""

import argparse
import sys
from pathlib import Path

from rankline.serving.client import Client
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.serving.loadtest.runner import check_batch_sizes, measure
from rankline.serving.loadtest.summary import checked, columns, remarks
from rankline.workflows.core.errors import RanklineError
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.targets import BINARY


def main() -> int:
    options = _parser().parse_args()
    try:
        return show(_bench(options.url, options.model, options.prepared, tuple(options.batch_sizes)))
    except RanklineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _bench(url: str, model: str, directory: Path, batch_sizes: tuple[int, ...]) -> BenchmarkReport:
    prepared = PreparedData.load(directory)
    heldout = prepared.heldout()
    rows = heldout.select(list(prepared.inputs))
    with Client(url, model) as client:
        check_batch_sizes(batch_sizes, client.schema.max_batch_size)
        scores = client.predict(rows)
        heads = prepared.spec.heads
        is_ranking = [head.task for head in heads] == [BINARY]
        auc = f"AUC {exact_auc(heldout[heads[0].column].to_numpy(), scores):.4f} on " if is_ranking else ""
        print(f"{model} at {url}: {auc}{rows.num_rows:,} held-out rows", flush=True)
        return measure(client, rows, batch_sizes, expected=scores)


def show(report: BenchmarkReport) -> int:
    """Print results to standard output and problems to standard error. Return 1 if there are problems, else 0."""
    shown = columns(report.bench)
    for line in (shown, *zip(*([cell.text for cell in cells] for cells in shown.values()), strict=True)):
        print("".join(f"{text:>12}" for text in line))
    for remark in remarks(report.bench):
        print(remark)
    print(checked(report))
    for problem in report.problems:
        print(problem, file=sys.stderr)
    return 1 if report.problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rankline.serving.deploy.bench", description="Measure a server.")
    parser.add_argument("--url", required=True, help="gRPC address of the server (HOST:PORT)")
    parser.add_argument("--model", required=True, help="name of the ensemble")
    parser.add_argument("--prepared", type=Path, required=True, help="prepared data with held-out rows")
    parser.add_argument(
        "--batch-sizes",
        type=int,
        nargs="+",
        default=(1, 64, 1024, 16384),
        metavar="ROWS",
        help="rows per request (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
