"""The results of `bench scaling`: latency at each rate, on one core and on all of them, and the chart of both."""

from collections.abc import Mapping, Sequence

from rankline.workflows.page.charts import Axis, Chart, plain

Results = Mapping[str, Mapping[str, float]]
_STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#59636e}.b{font-weight:600}.g{stroke:#8a949e;stroke-opacity:.25}"
    ".l{fill:none;stroke-width:2.5}.dashed{stroke-dasharray:5 4}.m{stroke:#8a949e;stroke-dasharray:3 3}"
    ".c0{stroke:#2459d6}.c1{stroke:#c2571a}.d.c0,.f0{fill:#2459d6}.d.c1,.f1{fill:#c2571a}"
    "@media(prefers-color-scheme:dark){text{fill:#9aa5b1}.c0{stroke:#7aa7ff}.c1{stroke:#f0a06a}"
    ".d.c0,.f0{fill:#7aa7ff}.d.c1,.f1{fill:#f0a06a}}</style>"
)


def cores_in_words(number: int) -> str:
    return "1 core" if number == 1 else f"{number} cores"


def cores_in(results: Results) -> list[int]:
    return sorted({int(name.split()[0]) for name in results})


def curve(results: Results, cores: int) -> Sequence[Mapping[str, float]]:
    """Return the results of all rates on a number of cores whose latency was measured, the lowest first."""
    at_a_rate = f"{cores_in_words(cores)}, 1 row at"
    return [own for name, own in results.items() if name.startswith(at_a_rate) and "p50_ms" in own]


def knee(results: Results, cores: int) -> Mapping[str, float]:
    """Return the results of the rate beyond which latency grows faster than throughput."""
    return max(curve(results, cores), key=lambda own: own["rows_per_s"] / own["p50_ms"])


def svg(results: Results) -> str:
    curves = {cores: curve(results, cores) for cores in cores_in(results)}
    every = [own for curve in curves.values() for own in curve]
    x = Axis.linear([0, *(own["rows_per_s"] for own in every)], "requests per second, one row each")
    y = Axis.log(
        (own[name] for own in every for name in ("p50_ms", "p99_ms") if name in own), text=lambda ms: f"{plain(ms)} ms"
    )
    chart = Chart(x, y, "Latency against request rate")
    for color, (cores, curve_of) in enumerate(curves.items()):
        for name, kind in (("p50_ms", ""), ("p99_ms", "dashed")):
            points = [(own["rows_per_s"], own[name]) for own in curve_of if name in own]
            chart.line(points, color, kind=kind)
            titles = [f"{cores_in_words(cores)}, {plain(rate)} requests/s: {plain(ms)} ms" for rate, ms in points]
            chart.dots(points, titles, color)
        at_knee = knee(results, cores)
        chart.mark(at_knee["rows_per_s"], f"knee, {cores_in_words(cores)}", level=color)
        chart.label(curve_of[-1]["rows_per_s"], curve_of[-1]["p50_ms"], cores_in_words(cores), color, is_above=False)
    drawn = str(chart.svg()).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return drawn.replace(">", f">{_STYLE}", 1) + "\n"
