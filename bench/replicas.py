"""replicas: what the balancer of `rankline serve --replicas` costs.

One server, asked directly and through an nginx that has no other, each request once by each way, one after the other.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import pyarrow as pa

from bench.models import make_model, request_rows
from bench.report import Report, scratch_directory
from rankline.workspace import Workspace
from serving.balancer import Balancer, BalancerConfig, Upstream
from serving.client import Client
from serving.ensemble import ExportedEnsemble
from serving.server import EmbeddedServer
from serving.supervise import config_of

NUM_REQUESTS = {1: 400, 1_024: 100, 16_384: 20}
"""Rows of a request → how many for each repeat."""
_ROWS = 100_000


def run(repeats: int, recipe: str = "movielens") -> Report:
    """Median latency by each way, for each size of a request."""
    with scratch_directory() as directory, ExitStack() as stack:
        root = directory
        workspace = Workspace(recipe=recipe, root=root / "work", repository=root / "repository")
        rows = request_rows(make_model(workspace, _ROWS)[0])
        server = stack.enter_context(EmbeddedServer(config_of(ExportedEnsemble.load(workspace.ensemble))))
        balancer = Balancer(BalancerConfig())
        balancer.start([Upstream.of(1, server.endpoints)])
        stack.callback(balancer.stop)
        clients = {
            "alone": stack.enter_context(Client(server.endpoints.grpc, recipe)),
            "behind nginx": stack.enter_context(Client(balancer.endpoints.grpc, recipe)),
        }

        results: dict[str, dict[str, float]] = {side: {} for side in clients}
        ratios = {}
        rng = np.random.default_rng(0)
        for size, num_requests in NUM_REQUESTS.items():
            starts = rng.integers(0, len(rows) - size, repeats * num_requests)
            batches = [rows.slice(int(start), size) for start in starts]
            medians = medians_ms(clients, batches)
            for side, median_ms in medians.items():
                results[side][f"p50_ms@{size}"] = median_ms
            ratios[f"balancer_latency@{size}"] = medians["behind nginx"] / medians["alone"]
    return Report(name="replicas", results=results, ratios=ratios)


def medians_ms(clients: Mapping[str, Client], batches: Sequence[pa.Table]) -> dict[str, float]:
    """Median latency of each client over the batches, after a tenth that warms up."""
    latencies_ns: dict[str, list[int]] = {side: [] for side in clients}
    for batch in batches:
        for side, client in clients.items():
            request = client.prepare(batch)
            begin = time.perf_counter_ns()
            client.infer(request)
            latencies_ns[side].append(time.perf_counter_ns() - begin)
    return {side: float(np.median(values[len(values) // 10 :])) / 1e6 for side, values in latencies_ns.items()}
