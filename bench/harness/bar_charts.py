"""Bar charts of the main results, one SVG file each, for the page of benchmarks."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from bench.harness.report import Report

PICTURES = Path("docs") / "pictures"
_WIDTH, _LABELS, _ROW, _TOP = 640, 170, 26, 46
_ROOM = 90  # for the figure behind a bar
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1c2126}.title{font-weight:600;font-size:15px}.soft{fill:#59636e}"
    ".own{fill:#2459d6}.other{fill:#aab4bf}"
    "@media(prefers-color-scheme:dark){text{fill:#e6e9ec}.soft{fill:#9aa5b1}.own{fill:#7aa7ff}.other{fill:#586575}}"
)


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """Attributes:
    benchmark: report that has the results.
    metric: name of the result.
    sides: label → side of the report; the first is Rankline's.
    most: longer bars are cut there, and marked, so that the others can be told apart.
    """

    benchmark: str
    metric: str
    title: str
    note: str
    form: str
    sides: Mapping[str, str]
    most: float | None = None

    def svg(self, report: Report) -> str:
        figures = {label: report.results[side][self.metric] for label, side in self.sides.items()}
        longest = min(max(figures.values()), self.most or float("inf"))
        height = _TOP + _ROW * len(figures) + 8
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
            f'aria-label="{escape(self.title)}"><style>{_STYLE}</style>',
            f'<text class="title" x="0" y="16">{escape(self.title)}</text>',
            f'<text class="soft" x="0" y="35">{escape(self.note)}</text>',
        ]
        for number, (label, figure) in enumerate(figures.items()):
            row = _TOP + _ROW * number
            width = (_WIDTH - _LABELS - _ROOM) * min(figure / longest, 1)
            is_cut = figure > longest
            parts.append(
                f'<text x="{_LABELS - 8}" y="{row + 17}" text-anchor="end">{escape(label)}</text>'
                f'<rect class="{"other" if number else "own"}" x="{_LABELS}" y="{row + 4}" width="{width:.1f}" '
                f'height="{_ROW - 8}" rx="3"/>'
                f'<text x="{_LABELS + width + 6:.1f}" y="{row + 17}">{"⋯ " * is_cut}{self.form.format(figure)}</text>'
            )
        return "".join([*parts, "</svg>\n"])


_SERVERS = {
    "Rankline": "rankline",
    "a bare ASGI app": "asgi",
    "FastAPI": "fastapi",
    "LitServe": "litserve",
    "BentoML": "bentoml",
    "MLflow's server": "mlflow",
    "Ray Serve": "ray serve",
    "merlin-systems": "merlin-systems",
}
CHARTS = {
    "latency": BarChart(
        benchmark="alternatives",
        metric="p50_ms@1",
        title="One row: median latency, raw row in, score out",
        note="Milliseconds, shorter is better. Bars over 6 ms are cut.",
        form="{:.2g} ms",
        sides=_SERVERS,
        most=6,
    ),
    "in_flight": BarChart(
        benchmark="alternatives",
        metric="rows_per_s@1x32",
        title="Requests per second, 32 in flight",
        note="One row each; longer is better.",
        form="{:,.0f}",
        sides=_SERVERS,
    ),
    "throughput": BarChart(
        benchmark="alternatives",
        metric="rows_per_s@16384",
        title="Rows per second, 16,384 rows per request",
        note="Longer is better.",
        form="{:,.0f}",
        sides=_SERVERS,
    ),
    "loader": BarChart(
        benchmark="loader",
        metric="rows_per_s",
        title="Rows read per second for training, shuffled",
        note="Longer is better.",
        form="{:,.0f}",
        sides={
            "Rankline": "rankline",
            "merlin-dataloader": "merlin-dataloader",
            "TFRecord, tuned": "TFRecord, tuned",
            "TFRecord, NVIDIA's notebook": "TFRecord, notebook",
        },
    ),
}
"""Name of the file → its chart."""


def pictures(reports: Mapping[str, Report]) -> dict[Path, str]:
    return {PICTURES / f"{name}.svg": chart.svg(reports[chart.benchmark]) for name, chart in CHARTS.items()}
