"""Decides whether a new version replaces the active one, after both score the same rows on one server."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rankline.serving.loadtest.config import LoadConfig, Slo
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.core.formatting import quality_figure, quality_interval
from rankline.workflows.core.progress import Progress

if TYPE_CHECKING:
    from rankline.serving.client import Client
    from rankline.serving.repository.ensemble import ExportedEnsemble
    from rankline.training.evaluation.confidence import Difference
    from rankline.workflows.preprocess.prepared_data import PreparedData

_LOAD = LoadConfig(warmup_s=0.5, window_s=0.5, min_duration_s=3.0, time_limit_s=6.0)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Requirements that a new version has to meet before it becomes active.

    Attributes:
        metric: metric that must improve: auc, logloss or rmse.
        by: minimum improvement.
        p99_ms: upper bound of the 99th percentile of latency, for requests of one row; None for no bound.
    """

    metric: str
    by: float = 0.0
    p99_ms: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.by < math.inf:
            raise ConfigError(f"--by is {self.by}, expected a finite, nonnegative number.")

    @classmethod
    def parse(cls, metric: str | None, by: float | None, p99: str | None) -> "Bounds | None":
        if metric is None:
            if given := [name for name, value in (("--by", by), ("--p99", p99)) if value is not None]:
                raise ConfigError(f"{', '.join(given)} can be used only with --if-better METRIC.")
            return None
        return cls(metric=metric, by=by or 0.0, p99_ms=None if p99 is None else Slo.parse(f"p99={p99}").bound_ms)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision on whether a candidate replaces the champion (the active version), with the comparison behind it."""

    champion: int
    candidate: int
    title: str
    found: "Difference"
    p99_ms: float | None
    refusals: tuple[str, ...]
    remark: str = ""

    @property
    def words(self) -> str:
        low, high = self.found.bounds
        figures = f"{self.title} {quality_figure(self.found.before)} → {quality_figure(self.found.after)}"
        said = f"{figures}, {quality_figure(self.found.change, '+')} ({quality_interval(low, high)})"
        said += f", p99 {self.p99_ms:.2f} ms" if self.p99_ms is not None else ""
        said += f". {self.remark}" if self.remark else ""
        if self.refusals:
            return f"version {self.champion} stays active: {'; '.join(self.refusals)}. {said}"
        return f"version {self.candidate} is better than version {self.champion}: {said}"


def check_metric(metric: str, prepared: "PreparedData") -> None:
    from rankline.training.evaluation import METRICS
    from rankline.training.evaluation.confidence import MEASURABLE

    heads = prepared.spec.heads
    if len(heads) > 1:
        raise ConfigError(
            f"--if-better requires a single label, but this data has {', '.join(head.column for head in heads)}."
        )
    known = [name for name in MEASURABLE if heads[0].task in METRICS[name].tasks]
    if metric not in known:
        raise ConfigError(
            f"--if-better is {metric!r}, expected {' or '.join(known)} because the task is {heads[0].task}."
        )


def try_out(
    champion: "ExportedEnsemble",
    candidate: "ExportedEnsemble",
    prepared: "PreparedData",
    bounds: Bounds,
    *,
    log_path: Path,
    progress: Progress,
) -> Decision:
    from rankline.serving.loadtest.runner import measure
    from rankline.training.evaluation import METRICS, objective_of
    from rankline.training.evaluation.confidence import difference

    check_metric(bounds.metric, prepared)
    heldout = prepared.heldout()
    (head,) = prepared.spec.heads
    rows, labels = heldout.select(list(prepared.inputs)), heldout[head.column].to_numpy()
    with _serving_both(champion, candidate, log_path) as (old, new):
        refusals = list(_other_requests(old, new))
        lacking = [
            column.name for column in old.schema.columns if column.is_required and column.name not in prepared.inputs
        ]
        if lacking:
            raise DataError(f"version {champion.version} requires {', '.join(lacking)}, which the new data lacks.")
        progress.update(1, 3, "score by both")
        scored = [(labels, client.predict(rows)) for client in (old, new)]
        p99_ms = None
        if bounds.p99_ms is not None:
            progress.update(2, 3, "measure")
            (result,) = measure(new, rows, [1], config=_LOAD, expected=scored[1][1]).bench
            p99_ms = result.value("p99_ms")
            if p99_ms is None:
                refusals.append(f"p99 was not measured ({result.metrics['p99_ms'].reason or result.problem})")
            elif p99_ms > bounds.p99_ms:
                refusals.append(f"p99 is {p99_ms:.2f} ms, expected at most {bounds.p99_ms:g}")
    found = difference(bounds.metric, scored[0], scored[1], 2 * [prepared.heldout_groups(len(labels))])
    objective = objective_of([head])
    higher_is_better = objective.higher_is_better and objective.name == bounds.metric
    gain = found.change if higher_is_better else -found.change
    title = METRICS[bounds.metric].title
    if not found.is_sure or gain <= 0:
        refusals.append(f"{title} is {('worse' if found.is_sure else 'not significantly better')}")
    elif gain < bounds.by:
        refusals.append(f"{title} improves by {quality_figure(gain)}, expected {bounds.by:g} or more")
    progress.update(3, 3)
    return Decision(
        champion=champion.version,
        candidate=candidate.version,
        title=title,
        found=found,
        p99_ms=p99_ms,
        refusals=tuple(refusals),
        remark=advantage_of(champion, prepared),
    )


def advantage_of(champion: "ExportedEnsemble", prepared: "PreparedData") -> str:
    """Return a remark if the champion may have been trained on some of the validation rows, otherwise an empty string.

    This needs a random split: other splits validate on later rows, or on the same groups as before.
    """
    manifest = prepared.manifest
    trained_on = champion.manifest.made_from.get(manifest.kind, manifest.fingerprint)
    if trained_on == manifest.fingerprint or prepared.split != "random" or prepared.spec.is_sequential:
        return ""
    return (
        f"Version {champion.version} was trained on other prepared data, perhaps on some of these rows, and scores "
        "these too well. Split by time to avoid this."
    )


def _other_requests(old: "Client", new: "Client") -> Iterator[str]:
    before, after = ({column.name: column for column in client.schema.columns} for client in (old, new))
    if gone := sorted(before.keys() - after.keys()):
        yield f"it does not accept {', '.join(gone)}, which current requests contain"
    if wanted := sorted(name for name, column in after.items() if column.is_required and name not in before):
        yield f"it requires {', '.join(wanted)}, which current requests lack"


@contextmanager
def _serving_both(
    champion: "ExportedEnsemble", candidate: "ExportedEnsemble", log_path: Path
) -> "Iterator[tuple[Client, Client]]":
    from rankline.serving.client import Client
    from rankline.serving.server.embedded import EmbeddedServer, ServerConfig

    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="rankline-trial-")))
        named = {f"{champion.name}_champion": champion, f"{candidate.name}_candidate": candidate}
        for name, ensemble in named.items():
            _write_named(ensemble, name, directory)
        config = ServerConfig(repositories=(champion.path, directory), models=tuple(named), log_path=log_path)
        server = stack.enter_context(EmbeddedServer(config))
        first, second = (stack.enter_context(Client(server.endpoints.grpc, name)) for name in named)
        yield first, second


def _write_named(ensemble: "ExportedEnsemble", name: str, directory: Path) -> None:
    """Write the ensemble's Triton config to `directory` under another name, without its steps' configs."""
    from google.protobuf import text_format

    config: Any = ensemble.model_config
    config.name = name
    config.ClearField("version_policy")
    (directory / name / "1").mkdir(parents=True)
    (directory / name / "config.pbtxt").write_text(text_format.MessageToString(config), encoding="utf-8")
