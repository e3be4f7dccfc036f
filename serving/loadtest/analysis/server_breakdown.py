"""Where the time of a request goes: client, network, and each step of the ensemble, from Triton's own statistics.

Triton adds up, for each model, how long requests queued, and how long its input, its work and its output took. Of two
readings around a measurement the difference is what that measurement cost.
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
    """Mean milliseconds that a request spent in one model.

    Attributes:
        queue_ms: waiting for an instance, and for other requests to join.
        input_ms: gathering the inputs.
        infer_ms: the model's work, and the way to its process and back.
        output_ms: handing out the outputs.
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
    """Mean milliseconds of a request; `client_ms`, `network_ms`, all steps and `remainder_ms` add up to `total_ms`.

    Attributes:
        total_ms: mean latency.
        client_ms: how late it was taken up, and the time until it was handed to the operating system.
        network_ms: what neither client nor server account for: kernel, network, and gRPC on both sides.
        steps: model → its times, in the order of the ensemble.
        remainder_ms: the server's time outside of all steps: the ensemble's own work. The server's mean covers a few
            requests more or fewer than ours, at both ends, so with few requests this can be below 0.
    """

    total_ms: float
    client_ms: float
    network_ms: float
    steps: Mapping[str, StepTimes]
    remainder_ms: float

    def parts_ms(self) -> dict[str, float]:
        """Name → milliseconds, in the order in which a request passes the parts."""
        steps = {
            f"{model}, {name.removesuffix('_ms')}": value
            for model, times in self.steps.items()
            for name, value in asdict(times).items()
        }
        return {"client": self.client_ms, "network": self.network_ms, **steps, "remainder": self.remainder_ms}


Reading: TypeAlias = Mapping[str, Mapping[str, int]]
"""Model → what Triton has added up since it was loaded: its answered requests, and nanoseconds of each kind."""
_KINDS = {
    "queue": "queue_ms",
    "compute_input": "input_ms",
    "compute_infer": "infer_ms",
    "compute_output": "output_ms",
}
"""Triton's statistics → fields of `StepTimes`."""


class Statistics:
    """Reads a model's statistics and those of its steps.

    Args:
        url: HOST:PORT of the server's gRPC protocol.
        model_name: an ensemble, or a model that is its own only step.

    Raises:
        ServerError: the server does not give its statistics.
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
            before, after: the readings.
            num_requests: how many we had answered between them.
            latency_ms: their mean latency.
            client_ms: what the client added to it.

        Returns:
            None where the server answered others too, or us not at all: its figures would not be about our requests.
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
        for model in self._ask(self._client.get_inference_statistics, name).model_stats:  # one for each version
            totals["count"] += model.inference_stats.success.count
            totals.update({kind: getattr(model.inference_stats, kind).ns for kind in ("success", *_KINDS)})
        return totals

    def _ask(self, method: Any, name: str) -> Any:
        try:
            return method(name, client_timeout=_TIMEOUT_S)
        except InferenceServerException as error:
            raise ServerError(f"{self._url} returned no statistics of {name!r}: {error.message()}") from None
