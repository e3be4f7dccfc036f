"""Comparison of two runs: quality on the same rows, latency, throughput, and differing settings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankline.runs.bench_reports import read_report
from rankline.runs.reader import Reader
from rankline.runs.summary import RunSummary, differences, validation_of
from rankline.serving.loadtest.compare import Comparison, compare
from rankline.serving.loadtest.compare import Difference as LoadDifference
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.serving.loadtest.summary import number
from rankline.training.evaluation import objective_of
from rankline.training.evaluation.confidence import MEASURABLE, Difference, difference
from rankline.training.evaluation.validation_scores import ValidationScores, scored_alike
from rankline.workflows.core.errors import ArtifactError, ConfigError
from rankline.workflows.core.formatting import quality_figure, quality_interval
from rankline.workflows.schema.targets import Head

_MAX_REGRESSION = 0.0  # report every slowdown; the reader decides whether it matters
_SAME = "no significant difference on {}"


@dataclass(frozen=True, kw_only=True)
class QualityDifference:
    """The difference in a metric between two runs. `title` includes the label if there are several labels."""

    title: str
    higher_is_better: bool
    found: Difference

    @property
    def is_better(self) -> bool:
        """Whether the second run is significantly better."""
        return self.found.is_sure and (self.found.change > 0) == self.higher_is_better

    @property
    def word(self) -> str:
        return "better" if self.is_better else "worse"

    @property
    def verdict(self) -> str:
        return self.word if self.found.is_sure else "the same"

    @property
    def words(self) -> str:
        """A description such as "AUC +0.0075 (+0.0061 to +0.0089)"."""
        low, high = self.found.bounds
        return f"{self.title} {quality_figure(self.found.change, '+')} ({quality_interval(low, high)})"


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    before: RunSummary
    after: RunSummary
    quality: tuple[QualityDifference, ...]
    num_rows: int
    is_paired: bool
    serving: Comparison | None
    differing: Mapping[str, list[str]]
    remarks: tuple[str, ...]
    scored: tuple[ValidationScores, ...] = field(default=(), repr=False)
    reports: tuple[BenchmarkReport, ...] = field(default=(), repr=False)

    @property
    def verdict(self) -> str:
        if not self.quality:
            said = [f"{self.after.label} against {self.before.label}: quality was not compared"]
        else:
            judged = self.quality[0]
            rows = f"{self.num_rows:,} {'' if self.is_paired else 'other '}rows"
            if not judged.found.is_sure:
                said = [f"{self.after.label} is as good as {self.before.label}: {_SAME.format(rows)}, {judged.words}"]
            else:
                said = [f"{self.after.label} is {judged.word} than {self.before.label}: {judged.words} on {rows}"]
            said += [
                f"but significantly {one.word}: {one.words}"
                for one in self.quality[1:]
                if one.found.is_sure and (not judged.found.is_sure or one.is_better != judged.is_better)
            ]
        return "; ".join([*said, *map(_loads_in_words, self.key_loads)])

    @property
    def differing_columns(self) -> dict[str, list[str]]:
        """The names of the runs and their differing settings, as columns with headings."""
        differing = {"name": [self.before.name, self.after.name], **self.differing}
        before, after = map(list, zip(*differing.values(), strict=True))
        return {"": list(differing), self.before.label: before, self.after.label: after}

    @property
    def key_loads(self) -> tuple[LoadDifference, ...]:
        found = self.serving.differences if self.serving else ()
        latency = [one for one in found if one.figure == "p50_ms"][:1]
        rates = sorted((one for one in found if one.figure == "rows_per_s"), key=lambda one: one.before)[-1:]
        return (*latency, *rates)

    def to_dict(self) -> dict[str, Any]:
        return {
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "verdict": self.verdict,
            "num_rows": self.num_rows,
            "is_paired": self.is_paired,
            "quality": [
                {
                    "figure": one.title,
                    "before": one.found.before,
                    "after": one.found.after,
                    "change": one.found.change,
                    "low": one.found.bounds[0],
                    "high": one.found.bounds[1],
                    "is_better": one.is_better,
                }
                for one in self.quality
            ],
            "serving": [vars(one) for one in self.serving.differences] if self.serving else None,
            "differing": dict(self.differing),
            "remarks": list(self.remarks),
        }


def compare_runs(store: Reader, before: RunSummary, after: RunSummary) -> RunComparison:
    if before.run_id == after.run_id:
        said = f"{before.label} and {after.label} come from the same run, {before.short_id}"
        said = f"{before.label} was passed twice" if before.label == after.label else said
        raise ConfigError(f"{said}. Pass two different runs; list them with: rankline runs")
    remarks: list[str] = []
    scored = _scored(store, before, after, remarks)
    quality, num_rows = _compared_quality(scored, remarks)
    reports = _reports(store, before, after, remarks)
    return RunComparison(
        before=before,
        after=after,
        quality=quality,
        num_rows=num_rows,
        is_paired=all(one.found.is_paired for one in quality),
        serving=_compared_serving(reports, remarks),
        differing=differences([before, after]),
        remarks=tuple(remarks),
        scored=scored,
        reports=reports,
    )


def _scored(store: Reader, before: RunSummary, after: RunSummary, remarks: list[str]) -> tuple[ValidationScores, ...]:
    found = [validation_of(store, run) for run in (before, after)]
    if lacking := [run.label for run, scores in zip((before, after), found, strict=True) if scores is None]:
        remarks.append(f"run {' and '.join(lacking)} has no stored scores of validation rows")
        return ()
    return tuple(scores for scores in found if scores is not None)


def _compared_quality(
    scored: Sequence[ValidationScores], remarks: list[str]
) -> tuple[tuple[QualityDifference, ...], int]:
    if not scored:
        return (), 0
    first, second = scored
    heads = scored_alike(first.heads, second.heads)
    if not heads:
        remarks.append("the runs were trained on different labels")
        return (), 0
    rows = [{head.column: own for head, own in one.by_head()} for one in scored]
    found = []
    for head in heads:
        own = [(one[head.column].labels, one[head.column].scores) for one in rows]
        groups = [one[head.column].groups for one in rows]
        prefix = f"{head.column}: " if len(first.heads) > 1 else ""
        try:
            for name, title, higher_is_better in _figures_of(head):
                measured = difference(name, own[0], own[1], groups)
                found.append(QualityDifference(title=prefix + title, higher_is_better=higher_is_better, found=measured))
        except ValueError as error:  # the stored rows may have only one class
            remarks.append(f"{head.column} was not compared: {str(error).rstrip('.')}")
    if not all(one.found.is_paired for one in found):
        remarks.append(
            "the runs were validated on different rows or labels, so the comparison is less precise than on the "
            "same rows"
        )
    return tuple(found), min(len(one.labels) for one in scored)


def _figures_of(head: Head) -> Iterator[tuple[str, str, bool]]:
    """Yield the name, title and direction (whether higher is better) of a head's metrics, the objective first."""
    from rankline.training.evaluation import METRICS

    objective = objective_of([head])
    yield objective.name, objective.title, objective.higher_is_better
    for name, metric in METRICS.items():
        if name in MEASURABLE and name != objective.name and head.task in metric.tasks:
            yield name, metric.title, False


def _reports(store: Reader, before: RunSummary, after: RunSummary, remarks: list[str]) -> tuple[BenchmarkReport, ...]:
    reports = []
    for run in (before, after):
        if not run.serving.keys() - {"megabytes"}:
            remedy = "rankline bench" if run.version else "rankline export, then rankline bench"
            remarks.append(f"run {run.label} has no latency because it was not measured: {remedy}")
            continue
        try:
            report = read_report(store, run.run_id)
        except ArtifactError as error:
            remarks.append(str(error).rstrip("."))
            continue
        if run.called and report.version not in (None, int(run.called.rpartition("@")[2])):
            measured = f"the last benchmark of its run measured version {report.version}"
            remarks.append(f"{run.label} has no latency because {measured}")
        else:
            reports.append(report)
    return tuple(reports) if len(reports) == 2 else ()


def _compared_serving(reports: Sequence[BenchmarkReport], remarks: list[str]) -> Comparison | None:
    if not reports:
        return None
    before, after = reports
    try:
        return compare(before, after, _MAX_REGRESSION)
    except ConfigError as error:
        remarks.append(str(error).rstrip("."))
        return None


def _loads_in_words(found: LoadDifference) -> str:
    """Return a description such as "p50 ms, 1 row: 0.62 → 0.58 (-6.5 %, better)"."""
    return f"{found.title}: {number(found.before)} → {number(found.after)} ({found.change:+.1%}, {found.verdict})"
