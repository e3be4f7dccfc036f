from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.nvt.kernels.dates import PARTS, date_part

EPOCH = datetime(1970, 1, 1)
EXPECTED = {
    "year": lambda time: time.year,
    "month": lambda time: time.month,
    "day": lambda time: time.day,
    "weekday": lambda time: time.weekday(),
    "hour": lambda time: time.hour,
    "minute": lambda time: time.minute,
    "day_of_year": lambda time: time.timetuple().tm_yday,
    "elapsed_days": lambda time: (time - EPOCH).days,
}


@pytest.mark.parametrize("part", PARTS)
@given(times=st.lists(st.datetimes(), min_size=1, max_size=20))
def test_parts_are_those_of_pythons_calendar(part: str, times: list[datetime]) -> None:
    micros = np.array([(time - EPOCH) // timedelta(microseconds=1) for time in times], dtype=np.int64)
    assert date_part(micros, part).tolist() == [EXPECTED[part](time) for time in times]


def test_every_number_of_64_bits_has_parts() -> None:
    limits = np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max, 0])
    for part in PARTS:
        assert np.isfinite(date_part(limits, part)).all()
