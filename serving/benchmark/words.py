"""What a report says in words, the same on the page and on the terminal."""

from collections.abc import Iterator

from serving.benchmark.percentiles import level_name
from serving.benchmark.report import BenchmarkReport, LoadResult


def remarks(result: LoadResult) -> Iterator[str]:
    """What a reader of a load's figures has to know, beside what is in `problem`."""
    levels: dict[str, list[str]] = {}
    for level, why in result.withheld.items():
        if why != result.problem:
            levels.setdefault(why, []).append(level_name(level))
    for why, names in levels.items():
        yield f"{', '.join(names)} withheld: {why}"
    if not result.is_stable and not result.problem:
        yield "three windows did not agree in the time there was"
    for status, count in result.errors.items():
        yield f"{count:,} requests ended as {status}"
    if result.num_unsent:
        yield f"{result.num_unsent:,} requests could not be sent in time"
    if result.num_repeated:
        yield f"{result.num_repeated:,} requests had rows that had been sent before"
    if result.lag_mean_ms is not None and result.lag_p99_ms is not None:
        yield f"sent {result.lag_mean_ms:.2f} ms late in the mean, {result.lag_p99_ms:.2f} at p99"


def checked(report: BenchmarkReport) -> str:
    """How many scores were looked at, and how right they were."""
    if not report.num_checked:
        return "no scores were compared with expected ones"
    return (
        f"{report.num_checked:,} scores were compared with the expected ones; "
        f"the worst is {number(report.max_abs_error)} off"
    )


def searched(report: BenchmarkReport) -> Iterator[str]:
    """What a search found, for each batch size."""
    for batch_size, search in (report.searches or {}).items():
        held = "no rate holds it" if search.rate_per_s is None else f"held up to {number(search.rate_per_s)} requests/s"
        failed = "" if search.failed_per_s is None else f", not at {number(search.failed_per_s)}"
        yield f"{report.slo}, {batch_size:,} rows in a request: {held}{failed}; {search.num_probes} rates tried"


def number(value: object) -> str:
    """A value for reading: four digits of a fraction, all digits of a count, a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
