"""The report of a run: a verdict, key figures, and the charts behind them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from rankline.report.analysis import Analysis, Baseline, Part
from rankline.report.ranking import FIRST, NDCG, RECALL, RankedItems
from rankline.serving.loadtest.report.cards import speed_section
from rankline.serving.loadtest.report.report import BenchmarkReport, LoadResult
from rankline.serving.loadtest.summary import checked, conclusion, rows_in_words
from rankline.training.evaluation import METRICS, Objective, metric_names, objective_of
from rankline.training.evaluation.cards import learning_curve, quality_cards
from rankline.training.evaluation.confidence import LEVEL, standard_error
from rankline.training.models.auto import left_out
from rankline.training.tracking import rankline_version
from rankline.workflows.core.formatting import local_time, quality_figure
from rankline.workflows.page.charts import Interval, Points, forest, plain
from rankline.workflows.page.page import Card, Page, Section, Tile, bar, embedded, table
from rankline.workflows.schema.targets import Head

if TYPE_CHECKING:
    from rankline.serving.repository.ensemble import ExportedEnsemble
    from rankline.workflows.preprocess.prepared_data import PreparedData
    from rankline.workflows.schema.model_artifact import TrainedModel

_CALIBRATED = 0.05
_WORSE = "worse than"
_SECOND = {
    "r2": "share of the variance that the model explains",
    "accuracy": "share of rows whose most likely class is right",
}
"""Further metrics with a tile, and what they mean."""


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What the report of a run says. All but the ensemble and the measurements may be unknown.

    Attributes:
        curves: name of a metric, such as inner_logloss, → its value after each epoch.
        steps: suggested commands, each with its purpose.
    """

    ensemble: "ExportedEnsemble"
    bench: BenchmarkReport
    prepared: "PreparedData | None" = None
    trained: "TrainedModel | None" = None
    analysis: Analysis | None = None
    curves: Mapping[str, Points] | None = None
    steps: Sequence[tuple[str, str]] = ()

    @property
    def heads(self) -> tuple[Head, ...]:
        return self.prepared.spec.heads if self.prepared else ()

    @property
    def objective(self) -> Objective | None:
        return objective_of(self.heads) if self.heads else None

    @property
    def figure(self) -> float | None:
        """The objective computed from the served scores, or else the one from training."""
        if self.objective is None:
            return None
        quality, name = self.bench.quality, self.objective.name
        return quality.get(f"served_{name}", quality.get(f"valid_{name}"))

    def _repr_html_(self) -> str:
        return embedded(self.page())

    def page(self) -> Page:
        version = f"version {self.ensemble.version}{' · active' if self.ensemble.is_active else ''}"
        is_checked = bool(self.bench.num_checked) and not self.bench.problems
        return Page(
            title=self.ensemble.name,
            chips=[version, *["served = trained ✓"] * is_checked],
            meta=list(self._meta()),
            verdict=self.verdict,
            trust=self.trust,
            problems=self.bench.problems,
            tiles=[*self._quality_tiles(), *self._speed_tiles()],
            steps=[f"`{command}` {purpose}" for command, purpose in self.steps],
            sections=[*self._quality(), speed_section({"": self.bench}), *self._columns(), *self._parts()],
        )

    def _meta(self) -> Iterator[str]:
        yield local_time(datetime.now(timezone.utc))
        if self.ensemble.run_id:
            yield f"run {self.ensemble.run_id[:8]}"
        engine = self.ensemble.manifest.details["engine"]
        if self.trained:
            model = self.trained.manifest.details.get("config", {}).get("model", "model")
            yield f"{model}, served by {engine}"
        if self.prepared:
            rows = self.prepared.manifest.details["rows"]
            yield f"{rows['train']:,} training and {rows['valid']:,} validation rows"
        environment = self.bench.environment
        if "cpu" in environment:
            yield f"{environment.get('cpu_count', '?')} cores of {environment['cpu']}"
        yield f"Rankline {rankline_version()}"

    # --- In words

    @property
    def verdict(self) -> str:
        return " ".join([*self._good(), *self._ranks(), *self._fast()])

    def _good(self) -> Iterator[str]:
        if self.objective is None or self.figure is None:
            return
        said = f"{self.objective.title} is **{quality_figure(self.figure)}**"
        baseline = self.analysis and self.analysis.baseline
        if not baseline:
            yield f"{said} on {self._num_rows():,} rows that training never saw."
            return
        named = f"`{baseline.column}` alone ({quality_figure(baseline.figure)}), the best single column"
        yield f"{said}, {_judged(self.objective, self.figure, baseline)} {named}."

    def _ranks(self) -> Iterator[str]:
        if ranked := self.analysis and self.analysis.ranked:
            found, popular = (figures[RECALL] for figures in (ranked.model, ranked.popular))
            yield (
                f"For what users choose next, Recall@{FIRST} is **{found:.1%}**, compared with {popular:.1%} for the "
                "most popular items."
            )

    def _fast(self) -> Iterator[str]:
        if first := self._smallest:
            p50, p99 = first.value("p50_ms") or 0, first.value("p99_ms")
            within = f" (99 % within {plain(p99)} ms)" if p99 is not None else ""
            yield f"The server answers {rows_in_words(first.batch_size)} in **{plain(p50)} ms**{within}."
            if (most := self._fastest) and most.rows_per_s > 0:
                size = rows_in_words(most.batch_size)
                yield f"In requests of {size}, it scores **{plain(most.rows_per_s)} rows per second**."
        elif self.bench.bench:
            yield f"{conclusion(self.bench)}."

    def quality_lines(self) -> Iterator[str]:
        """Describe the quality for the terminal: the objective and its baseline, calibration, and learning curves."""
        if self.objective is None or self.figure is None:
            return
        interval = self._interval
        yield f"{self.objective.title} {quality_figure(self.figure)}{f' ({interval})' * bool(interval)}"
        known = []
        if self.analysis and (baseline := self.analysis.baseline):
            simple, judged = quality_figure(baseline.figure), _judged(self.objective, self.figure, baseline)
            named = f"{baseline.column} alone"
            known.append(f"{judged} {named} ({simple})" if judged == _WORSE else f"{named} {simple}")
        if self.objective.name == "auc":
            known.append("guessing 0.5")
        if self.prepared and (best := self.prepared.spec.metadata.best_auc) is not None:
            known.append(f"best attainable {quality_figure(best)}")
        if known:
            yield "   ".join(known)
        for title, figure in self._of_labels():
            yield f"{title} {figure}"
        if ranked := self.analysis and self.analysis.ranked:
            found, popular = (quality_figure(figures[RECALL]) for figures in (ranked.model, ranked.popular))
            yield f"Recall@{FIRST} {found}   the most popular items {popular}   {ranked.num_users:,} users"
        if (ratio := self.bench.quality.get("valid_calibration")) is not None:
            off = abs(ratio - 1)
            yield f"the mean score is {off:.1%} {'above' if ratio > 1 else 'below'} the mean label"

    def _of_labels(self) -> Iterator[tuple[str, str]]:
        """Return the title and value of each label's objective if there are several labels."""
        for name, (head, metric) in metric_names(self.heads).items() if len(self.heads) > 1 else ():
            value = self.bench.quality.get(f"valid_{name}")
            if metric is METRICS[objective_of([head]).name] and value is not None:
                yield f"{head.column}: {metric.title}", quality_figure(value)

    def speed_lines(self) -> Iterator[str]:
        """Describe the speed for the terminal: the smallest and the fastest load."""
        shown = {id(one): one for one in (self._smallest, self._fastest) if one is not None}
        for one in shown.values():
            p50 = one.value("p50_ms")  # None for too few answers
            figures = [f"{one.load.words:<14} {'–' if p50 is None else plain(p50):>6} ms"]
            if (p99 := one.value("p99_ms")) is not None:
                figures.append(f"99 % within {plain(p99)} ms")
            yield "   ".join([*figures, f"{plain(one.rows_per_s)} rows/s"])

    @property
    def trust(self) -> str:
        """What the figures rest on."""
        said = [f"{checked(self.bench)[:1].upper()}{checked(self.bench)[1:]}."]
        if self.objective and (interval := self._interval):
            said.insert(0, f"With {self._num_rows():,} validation rows, {self.objective.title} is {interval} (95 %).")
        if self.bench.busy:
            said.append(
                f"**Other programs were using the machine ({self.bench.busy}), so speed is better on an idle one.**"
            )
        return " ".join(said)

    @property
    def _interval(self) -> str:
        """The 95 % interval of the objective; empty if unknown."""
        whole = self.analysis and self.analysis.whole
        return " to ".join(map(quality_figure, whole.bounds)) if whole and math.isfinite(whole.error) else ""

    def _num_rows(self) -> int:
        return int(self.prepared.manifest.details["rows"]["valid"]) if self.prepared else 0

    @property
    def _smallest(self) -> LoadResult | None:
        known = [one for one in self.bench.bench if one.value("p50_ms") is not None]
        return min(known, key=lambda one: (one.batch_size, one.concurrency or 0, one.rate_per_s or 0), default=None)

    @property
    def _fastest(self) -> LoadResult | None:
        return max(self.bench.bench, key=lambda one: one.rows_per_s, default=None)

    # --- Tiles

    def _quality_tiles(self) -> Iterator[Tile]:
        if self.objective is None or self.figure is None:
            return
        baseline = self.analysis and self.analysis.baseline
        interval = f"95 % interval {self._interval}" if self._interval else ""
        best = self.prepared.spec.metadata.best_auc if self.prepared else None
        if self.objective.name == "auc":
            marks = [(0.0, "0.5", "guessing")]
            if baseline:
                marks.append((_auc_share(baseline.figure), f"{baseline.figure:.2f}", f"{baseline.column} alone"))
            if best:
                marks.append((_auc_share(best), f"{best:.2f}", "best attainable, known for generated data"))
            marks.append((1.0, "1", "perfect"))
            scale = (_auc_share(self.figure), marks)
            yield Tile(title="AUC", value=f"{self.figure:.3f}", note=interval, scale=scale)
        else:
            note = f"{quality_figure(baseline.figure)} from {baseline.column} alone. " if baseline else ""
            yield Tile(title=self.objective.title, value=quality_figure(self.figure), note=note + interval)
        if (ratio := self.bench.quality.get("valid_calibration")) is not None:
            yield Tile(title="Calibration", value=f"{ratio - 1:+.1%}", note=self._calibrated(ratio - 1))
        for name, note in _SECOND.items():
            if (value := self.bench.quality.get(f"valid_{name}")) is not None:
                yield Tile(title=METRICS[name].title, value=f"{value:.3f}", note=note)
        for title, figure in self._of_labels():
            yield Tile(title=title, value=figure)

    def _calibrated(self, off: float) -> str:
        """Describe by how much the mean score differs from the mean label, `off` as a share of it."""
        if abs(off) < _CALIBRATED:
            return "scores are close to labels on average"
        if self.analysis is None:
            return "the mean score compared with the mean label"
        ((_, rows),) = self.analysis.scores.by_head()
        excess = rows.scores - rows.labels
        if abs(rows.mean(excess)) > LEVEL * standard_error(excess, rows.groups):
            return f"scores are too {'high' if off > 0 else 'low'} on average"
        return "scores differ from labels on average, but within chance"

    @property
    def _busy(self) -> str:
        return ", on a busy machine" if self.bench.busy else ""

    def _speed_tiles(self) -> Iterator[Tile]:
        if first := self._smallest:
            p99 = first.value("p99_ms")
            note = f"p99 {plain(p99)} ms" if p99 is not None else "too few requests for p99"
            note += self._busy
            title = rows_in_words(first.batch_size)
            yield Tile(
                title=title[:1].upper() + title[1:], value=plain(first.value("p50_ms") or 0), unit="ms p50", note=note
            )
        if (most := self._fastest) and most.rows_per_s > 0:
            note = f"with {rows_in_words(most.batch_size)} per request{self._busy}"
            yield Tile(title="Throughput", value=plain(most.rows_per_s), unit="rows/s", note=note)

    # --- Sections

    def _quality(self) -> Iterator[Section]:
        cards: list[Card] = []
        folded: dict[str, Markup] = {}
        if self.trained:
            compared = self.trained.manifest.details.get("compared")
            cards += [_compared(compared)] if compared else list(self._learning())
        if self.analysis:
            for head, rows in self.analysis.scores.by_head():
                if len(rows.labels):
                    cards += quality_cards(head, {"": rows}, len(self.heads))
            if ranked := self.analysis.ranked:
                cards.append(_ranked(ranked))
        titles = {
            f"valid_{name}": metric.title if len(self.heads) == 1 else f"{head.column}: {metric.title}"
            for name, (head, metric) in (metric_names(self.heads) if self.heads else {}).items()
            if metric.title
        }
        shown = {title: self.bench.quality[name] for name, title in titles.items() if name in self.bench.quality}
        if shown:
            folded["All quality figures"] = table(
                {"": list(shown), "on the validation rows": list(map(quality_figure, shown.values()))}
            )
        if cards or shown:
            yield Section(title="How good are the scores?", cards=cards, folded=folded)

    def _learning(self) -> Iterator[Card]:
        assert self.trained is not None
        if self.objective is None or self.curves is None:
            return
        loss = "rmse" if self.objective.name == "rmse" else "loss" if self.objective.name == "loss" else "logloss"
        held_out = (("inner_", "held out"), ("valid_", "validation"))
        known = (pair for pair in held_out if len(self.curves.get(f"{pair[0]}{loss}", ())) > 1)
        prefix, name = next(known, held_out[-1])
        training = f"{'inner_' if prefix == 'inner_' else ''}train_loss"
        curves = {name: self.curves.get(f"{prefix}{loss}", ())}
        if loss == "logloss" and training in self.curves:
            curves["training"] = self.curves[training]
        epoch = self.trained.metrics.get("epoch")
        title = METRICS[loss].title if loss in METRICS else "loss"
        kept = int(epoch) if epoch is not None and math.isfinite(epoch) else None
        yield learning_curve(title, curves, kept, self.objective.title if prefix == "inner_" else "")

    def _columns(self) -> Iterator[Section]:
        if not self.analysis or not self.analysis.columns:
            return
        assert self.objective is not None
        columns = self.analysis.columns
        largest = max((column.loss or 0.0 for column in columns), default=0.0) or 1.0
        losses = [Markup("–") if column.loss is None else bar(max(column.loss, 0.0) / largest) for column in columns]
        cells: dict[str, list[Any]] = {
            "column": [column.name for column in columns],
            "role": [column.role for column in columns],
            "distinct": ["–" if column.num_distinct is None else f"{column.num_distinct:,}" for column in columns],
            "missing": [f"{column.share_missing:.1%}" for column in columns],
            f"{self.objective.title} lost if shuffled": losses,
            "": ["–" if column.loss is None else quality_figure(column.loss) for column in columns],
        }
        more = self.analysis.num_columns - len(columns)
        note = "How much worse the served scores get if the values of one column are shuffled among the rows."
        if more:
            note += f" The first {len(columns)} of {self.analysis.num_columns:,} columns are shown."
        card = Card(title="Columns", note=note, content=table(cells, left=2), is_wide=True)
        yield Section(title="What do the scores depend on?", cards=[card])

    def _parts(self) -> Iterator[Section]:
        if not self.analysis or not self.analysis.parts or self.analysis.whole is None:
            return
        whole, objective = self.analysis.whole, self.objective
        assert objective is not None
        cards = []
        for title, parts in self.analysis.parts.items():
            known = [part for part in parts if math.isfinite(part.figure) and math.isfinite(part.error)]
            unknown = [part.name for part in parts if part not in known]
            if known:
                missing = f" Too few rows, or a single class: {', '.join(unknown)}." if unknown else ""
                note = f"{objective.title} with 95 % intervals; the dashed line is all rows.{missing}"
                cards.append(Card(title=title, note=note, content=_forest(known, whole, objective)))
        if cards:
            yield Section(title="For which rows is it good?", cards=cards)


def _judged(objective: Objective, figure: float, baseline: Baseline) -> str:
    gain = figure - baseline.figure if objective.higher_is_better else baseline.figure - figure
    margin = LEVEL * baseline.error
    return "clearly better than" if gain > margin else _WORSE if gain < -margin else "no better than"


def _forest(parts: Sequence[Part], whole: Part, objective: Objective) -> Markup:
    intervals = []
    for part in parts:
        low, high = part.bounds
        text = f"{quality_figure(part.figure)} on {part.num_rows:,} rows"
        intervals.append(Interval(name=part.name, value=part.figure, low=low, high=high, text=text))
    return forest(intervals, zero=whole.figure, label=f"{objective.title} by part of the rows", text=quality_figure)


def _compared(compared: Mapping[str, Any]) -> Card:
    """Draw the models that `auto` compared, with the spread of their scores over the folds."""
    done = [one for one in compared["candidates"] if not one["problem"]]
    intervals = []
    for one in done:
        share = f", {one['weight']:.0%} of the model" if one["weight"] else ""
        text = f"{quality_figure(one['score'])} ± {quality_figure(one['spread'])}{share}"
        low, high = one["score"] - one["spread"], one["score"] + one["spread"]
        intervals.append(
            Interval(
                name=one["name"], value=one["score"], low=low, high=high, text=text, color=0 if one["weight"] else 4
            )
        )
    note = " ".join(f"{sentence}." for sentence in (f"Chosen: {compared['reason']}", *left_out(compared)))
    chart = forest(intervals, zero=None, label="Models compared", text=quality_figure) if intervals else ""
    return Card(title="Models compared", note=note, content=chart)


def _ranked(ranked: RankedItems) -> Card:
    sides = {"the model": ranked.model, "the most popular items": ranked.popular}
    cells: dict[str, list[Any]] = {"ranked by": list(sides)}
    for name, title in ((RECALL, "Recall"), (NDCG, "NDCG")):
        cells[title] = [quality_figure(figures[name]) for figures in sides.values()]
        cells[" " * len(cells)] = [bar(figures[name]) for figures in sides.values()]
    note = (
        f"All items that are new to a user are ranked, for {ranked.num_users:,} users. Recall@{FIRST} counts the items "
        f"chosen after training that are among the first {FIRST}, as a share of the most possible."
    )
    return Card(title="What users choose next", note=note, content=table(cells))


def _auc_share(auc: float) -> float:
    return min(max((auc - 0.5) / 0.5, 0.0), 1.0)
