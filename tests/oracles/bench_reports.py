"""What a trial run of a benchmark must report, however fast it was."""

import math
from collections.abc import Collection

from bench.harness.report import Report


def check_report(report: Report, *, sides: Collection[str], ratios: Collection[str]) -> None:
    """Check that a report has these sides and ratios, and that all its figures are finite."""
    assert list(report.results) == list(sides)
    assert set(report.ratios) == set(ratios)
    assert all(math.isfinite(value) for figures in report.results.values() for value in figures.values())
    assert all(math.isfinite(value) for value in report.ratios.values())
