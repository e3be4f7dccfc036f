"""Breakdown of a request's latency from Triton's statistics, and the server's CPU time and memory.

Latency is split into client, network, and each step of the ensemble. For each model, Triton sums up the time that
requests spent in the queue, and the time for their inputs, computation and outputs. The difference of two readings
around a measurement is the time spent in that measurement.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import psutil
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from rankline.workflows.core.errors import ServerError

_NO_PROXY = [("grpc.enable_http_proxy", 0)]
_FOREIGN_SHARE = 0.1
_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Mean time per request in one model, in milliseconds.

    Attributes:
        queue_ms: waiting for an instance, and for other requests to be batched with.
        input_ms: gathering the inputs.
        infer_ms: computation of the model, including communication with its process.
        output_ms: sending the response, or passing it to the ensemble.
    """

    queue_ms: float
    input_ms: float
    infer_ms: float
    output_ms: float

    @property
    def total_ms(self) -> float:
        return self.queue_ms + self.input_ms + self.infer_ms + self.output_ms


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Breakdown of the mean latency. `client_ms`, `network_ms`, all steps and `remainder_ms` add up to `total_ms`.

    Attributes:
        total_ms: mean latency.
        client_ms: delay of the request in the client until it is passed to the operating system.
        network_ms: time outside of client and server: kernel, network, and gRPC on both sides.
        steps: model → its times, in the order of the ensemble.
        remainder_ms: time of the server outside all steps: work of the ensemble itself. The server's mean includes a
            few more or fewer requests than the client's at both ends, so it can be negative for few requests.
    """

    total_ms: float
    client_ms: float
    network_ms: float
    steps: Mapping[str, StepTimes]
    remainder_ms: float


Reading: TypeAlias = Mapping[str, Mapping[str, int]]
"""Model → Triton's totals since it was loaded: number of answered requests, and nanoseconds of each kind."""
_KINDS = {
    "queue": "queue_ms",
    "compute_input": "input_ms",
    "compute_infer": "infer_ms",
    "compute_output": "output_ms",
}
"""Names in Triton's statistics → fields of `StepTimes`."""


class Statistics:
    """A reader of Triton's statistics for an ensemble and its steps. A model that is not an ensemble is treated as its
    own only step.
    """

    def __init__(self, url: str, model_name: str) -> None:
        self._url, self._name = url, model_name
        self._client = InferenceServerClient(url, channel_args=_NO_PROXY)
        config = self._ask(self._client.get_model_config, model_name).config
        self._steps = [step.model_name for step in config.ensemble_scheduling.step] or [model_name]

    def close(self) -> None:
        self._client.close()

    def read(self) -> Reading:
        return {name: self._totals(name) for name in {self._name, *self._steps}}

    def breakdown(
        self, before: Reading, after: Reading, *, num_requests: int, latency_ms: float, client_ms: float
    ) -> Breakdown | None:
        """Break down our requests' mean latency between two readings. `client_ms` is the part spent in the client.

        Return None if the server answered none of our requests, or also requests of other clients, since its statistics
        would not describe our requests.
        """
        grown = {name: Counter(totals) for name, totals in after.items()}
        for name, totals in grown.items():
            totals.subtract(before[name])
        num_answered = grown[self._name]["count"]
        if not num_answered or abs(num_answered - num_requests) > _FOREIGN_SHARE * num_answered + 1:
            return None

        def mean_ms(model: str, kind: str) -> float:
            return grown[model][kind] / num_answered / 1e6

        steps = {
            name: StepTimes(**{field: mean_ms(name, kind) for kind, field in _KINDS.items()}) for name in self._steps
        }
        network_ms = max(latency_ms - client_ms - mean_ms(self._name, "success"), 0.0)
        return Breakdown(
            total_ms=latency_ms,
            client_ms=client_ms,
            network_ms=network_ms,
            steps=steps,
            remainder_ms=latency_ms - client_ms - network_ms - sum(times.total_ms for times in steps.values()),
        )

    def _totals(self, name: str) -> dict[str, int]:
        totals = Counter[str]()
        for model in self._ask(self._client.get_inference_statistics, name).model_stats:  # one per version
            totals["count"] += model.inference_stats.success.count
            totals.update({kind: getattr(model.inference_stats, kind).ns for kind in ("success", *_KINDS)})
        return totals

    def _ask(self, method: Any, name: str) -> Any:
        try:
            return method(name, client_timeout=_TIMEOUT_S)
        except InferenceServerException as error:
            raise ServerError(f"{self._url} returned no statistics for {name!r}: {error.message()}") from None


@dataclass(frozen=True, kw_only=True)
class ServerResources:
    """CPU time and memory used by the server.

    Attributes:
        cpu_cores: CPU time per second; 1 is one fully used core.
        memory_bytes: maximum resident memory of all processes together, with shared pages counted in each process.
        num_processes: number of processes, the server and its model instances.
    """

    cpu_cores: float
    memory_bytes: int
    num_processes: int


class ResourceMeter:
    """Meter of the CPU time and memory used by processes between `begin` and `end`. `process_ids` returns no ids if the
    server runs on another machine.
    """

    def __init__(self, process_ids: Callable[[], Sequence[int]]) -> None:
        self._process_ids = process_ids
        self._begin_s = self._elapsed_s = 0.0
        self._cpu_before: dict[int, float] = {}
        self._cpu_after: dict[int, float] = {}
        self._memory_bytes = 0

    def begin(self) -> None:
        self._begin_s, self._memory_bytes = time.perf_counter(), 0
        self._cpu_before = self.sample()

    def sample(self) -> dict[int, float]:
        """Update the peak memory, and return the CPU time of each process in seconds, keyed by process id."""
        cpu_s, memory_bytes = {}, 0
        for pid in self._process_ids():
            try:
                process = psutil.Process(pid)
                times = process.cpu_times()
                memory_bytes += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            cpu_s[pid] = times.user + times.system
        self._memory_bytes = max(self._memory_bytes, memory_bytes)
        return cpu_s

    def end(self) -> None:
        self._cpu_after = self.sample()
        self._elapsed_s = time.perf_counter() - self._begin_s

    def result(self) -> ServerResources | None:
        if not self._cpu_after or not self._elapsed_s:
            return None
        used_s = sum(cpu_s - self._cpu_before.get(pid, 0.0) for pid, cpu_s in self._cpu_after.items())
        return ServerResources(
            cpu_cores=used_s / self._elapsed_s,
            memory_bytes=self._memory_bytes,
            num_processes=len(self._cpu_after),
        )
