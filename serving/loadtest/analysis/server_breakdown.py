"""Breakdown of a request's latency into client, network, and each step of the ensemble, from Triton's statistics.

For each model, Triton sums up the time that requests spent in the queue, and the time for their inputs, computation and
outputs. The difference of two readings around a measurement is the time spent in that measurement.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

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
        output_ms: returning the outputs.
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
    """Mean latency in milliseconds. `client_ms`, `network_ms`, all steps and `remainder_ms` add up to `total_ms`.

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

    def parts_ms(self) -> dict[str, float]:
        """Return name → milliseconds, in the order in which a request passes the parts."""
        steps = {
            f"{model}, {name.removesuffix('_ms')}": value
            for model, times in self.steps.items()
            for name, value in asdict(times).items()
        }
        return {"client": self.client_ms, "network": self.network_ms, **steps, "remainder": self.remainder_ms}


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
    """Reads the statistics of a model and its steps.

    Args:
        url: HOST:PORT of the server's gRPC protocol.
        model_name: an ensemble, or a model that is its own only step.

    Raises:
        ServerError: the server does not return its statistics.
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
        """Split the mean latency of the requests between two readings.

        Args:
            num_requests: number of our requests answered between them.
            latency_ms: mean latency of these requests.
            client_ms: part of the latency spent in the client.

        Returns:
            The breakdown; None if the server answered none of our requests, or also requests of other clients, since
            its statistics would not describe our requests.
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
            raise ServerError(f"{self._url} returned no statistics of {name!r}: {error.message()}") from None
