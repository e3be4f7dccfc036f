"""Extraction of date and time parts, shared by the NVTabular operators and the serving plan."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Micros = NDArray[np.int64]

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_THURSDAY = 3  # the weekday of 1970-01-01, with Monday as 0


def _days(micros: Micros) -> NDArray[np.int64]:
    days: NDArray[np.int64] = micros // _DAY
    return days


def _calendar(micros: Micros, unit: str) -> NDArray[np.int64]:
    """Convert times to days, months or years since 1970, depending on `unit`."""
    return _days(micros).astype("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.int64)


def _first_day(units: NDArray[np.int64], unit: str) -> NDArray[np.int64]:
    return units.astype(f"datetime64[{unit}]").astype("datetime64[D]").astype(np.int64)


PARTS: Mapping[str, Callable[[Micros], NDArray[np.int64]]] = {
    "year": lambda micros: 1970 + _calendar(micros, "Y"),
    "month": lambda micros: 1 + _calendar(micros, "M") % 12,
    "day": lambda micros: 1 + _days(micros) - _first_day(_calendar(micros, "M"), "M"),
    "weekday": lambda micros: (_days(micros) + _THURSDAY) % 7,
    "hour": lambda micros: micros % _DAY // (3600 * _SECOND),
    "minute": lambda micros: micros % (3600 * _SECOND) // (60 * _SECOND),
    "day_of_year": lambda micros: 1 + _days(micros) - _first_day(_calendar(micros, "Y"), "Y"),
    "elapsed_days": _days,
}
"""Part → function that computes it; weekday counts from Monday as 0, and elapsed_days from 1970-01-01."""
NUMERIC_PARTS = ("day_of_year", "elapsed_days")
"""Parts that are numeric features; the others are categories."""


def date_part(micros: Micros, part: str) -> NDArray[np.float64]:
    """Extract `part`, a key of `PARTS`, from UTC times in microseconds since 1970, as whole numbers in float64."""
    return PARTS[part](micros).astype(np.float64)
