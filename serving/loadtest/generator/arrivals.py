"""Schedules of requests: at a constant rate, as a Poisson process, or from a trace file.

An open loop follows its schedule independently of the server's responses, as users do. Latency counts from the time at
which a request was due (Tene's "coordinated omission"; MLPerf LoadGen's server scenario).
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.core.validation import is_number

Times: TypeAlias = npt.NDArray[np.int64]

_NS_PER_S = 1e9
_COLUMN_NAMES = ("arrival_s", "time_s", "timestamp", "time", "arrival")


@dataclass(frozen=True, kw_only=True)
class ConstantArrivals:
    rate_per_s: float

    def __post_init__(self) -> None:
        _check_rate(self.rate_per_s)

    def times_ns(self, duration_s: float) -> Times:
        return _whole(np.arange(np.ceil(self.rate_per_s * duration_s)) / self.rate_per_s, duration_s)


@dataclass(frozen=True, kw_only=True)
class PoissonArrivals:
    """A Poisson process: independent requests, as from many users, with exponentially distributed gaps.

    The same seed produces the same times.
    """

    rate_per_s: float
    seed: int = 0

    def __post_init__(self) -> None:
        _check_rate(self.rate_per_s)

    def times_ns(self, duration_s: float) -> Times:
        rng = np.random.default_rng(self.seed)
        # Given their number, the times of a Poisson process are independent and uniform.
        count = rng.poisson(self.rate_per_s * duration_s)
        return _whole(np.sort(rng.random(count)) * duration_s, duration_s)


@dataclass(frozen=True, kw_only=True)
class TraceArrivals:
    """Recorded arrival times, sorted and not empty. The run begins at the first arrival."""

    times_s: tuple[float, ...]

    def __post_init__(self) -> None:
        times = np.asarray(self.times_s, np.float64)
        if not times.size or not np.isfinite(times).all():
            raise DataError(
                "the arrival times are empty or not all finite, expected a finite number of seconds per arrival."
            )
        if (wrong := np.flatnonzero(np.diff(times) < 0)).size:
            before, after = times[wrong[0]], times[wrong[0] + 1]
            raise DataError(
                f"arrival {wrong[0] + 2} ({after:g} s) is earlier than its predecessor ({before:g} s). Sort the trace "
                "by time."
            )

    @property
    def duration_s(self) -> float:
        return self.times_s[-1] - self.times_s[0]

    @property
    def rate_per_s(self) -> float:
        """Mean number of requests per second, where traces shorter than one second count as one second."""
        return len(self.times_s) / max(self.duration_s, 1.0)

    def times_ns(self, duration_s: float) -> Times:
        times = np.asarray(self.times_s, np.float64)
        return _whole(times - times[0], duration_s)

    @classmethod
    def read(cls, path: Path) -> "TraceArrivals":
        """Read arrival times in seconds from a file, one per line, or from the CSV column arrival_s, time_s, timestamp,
        time or arrival.

        Raises:
            DataError: the file is missing, has another format, or is not sorted.
        """
        try:
            lines = [line for line in csv.reader(path.read_text(encoding="utf-8").splitlines()) if line]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"the trace {path} cannot be read: {error}. Pass a text file of arrival times.") from None
        column = 0
        if lines and not (len(lines[0]) == 1 and is_number(lines[0][0])):
            header = [name.strip().lower() for name in lines.pop(0)]
            found = [header.index(name) for name in _COLUMN_NAMES if name in header]
            if not found:
                raise DataError(f"{path} has the columns {header}, expected one of {list(_COLUMN_NAMES)}.")
            column = found[0]
        try:
            return cls(times_s=tuple(float(line[column]) for line in lines))
        except (ValueError, IndexError) as error:
            raise DataError(f"{path} cannot be read: {error}. Expected one arrival time in seconds per line.") from None
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


Arrivals: TypeAlias = ConstantArrivals | PoissonArrivals | TraceArrivals


def share(times_ns: Times, number: int, of: int) -> Times:
    """Return the arrivals assigned to process `number`, which are every `of`-th arrival. This gives all processes the
    same load at any time.
    """
    part: Times = times_ns[number::of]
    return part


def _whole(times_s: npt.NDArray[np.float64], duration_s: float) -> Times:
    times_ns: Times = np.rint(times_s * _NS_PER_S).astype(np.int64)
    within: Times = times_ns[times_ns < duration_s * _NS_PER_S]
    return within


def _check_rate(rate_per_s: float) -> None:
    if not 0 < rate_per_s < np.inf:
        raise ConfigError(f"rate is {rate_per_s:g} requests/s, expected a finite number greater than 0.")
