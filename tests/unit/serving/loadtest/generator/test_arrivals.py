from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.loadtest.generator.arrivals import (
    Arrivals,
    ConstantArrivals,
    PoissonArrivals,
    TraceArrivals,
    share,
)
from rankline.workflows.core.errors import ConfigError, DataError

RATES = st.floats(0.1, 5000)
DURATIONS = st.floats(0.01, 5)


@given(
    arrivals=st.one_of(
        st.builds(ConstantArrivals, rate_per_s=RATES),
        st.builds(PoissonArrivals, rate_per_s=RATES, seed=st.integers(0, 99)),
        st.lists(st.floats(-10, 10), min_size=1).map(lambda times: TraceArrivals(times_s=tuple(sorted(times)))),
    ),
    duration_s=DURATIONS,
)
def test_arrivals_are_in_order_and_within_the_run(arrivals: Arrivals, duration_s: float) -> None:
    times_ns = arrivals.times_ns(duration_s)
    assert times_ns.dtype == np.int64
    assert (np.diff(times_ns) >= 0).all()
    assert ((times_ns >= 0) & (times_ns < duration_s * 1e9)).all()


@given(arrivals=st.builds(ConstantArrivals, rate_per_s=RATES), duration_s=DURATIONS)
def test_constant_arrivals_are_even_and_complete(arrivals: ConstantArrivals, duration_s: float) -> None:
    times_ns = arrivals.times_ns(duration_s)
    assert abs(len(times_ns) - arrivals.rate_per_s * duration_s) <= 1
    np.testing.assert_allclose(times_ns, np.arange(len(times_ns)) / arrivals.rate_per_s * 1e9, atol=1)


@given(times=st.lists(st.integers(0, 10**12), max_size=200).map(sorted), of=st.integers(1, 9))
def test_share_gives_every_arrival_to_one_process(times: list[int], of: int) -> None:
    parts = [share(np.asarray(times, np.int64), number, of) for number in range(of)]
    assert sorted(np.concatenate(parts).tolist()) == times
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_poisson_arrivals_have_exponential_gaps_and_a_seed() -> None:
    times_ns = PoissonArrivals(rate_per_s=1000, seed=3).times_ns(50)
    gaps_ms = np.diff(times_ns) / 1e6
    assert gaps_ms.mean() == pytest.approx(1, rel=0.02)
    assert gaps_ms.std() == pytest.approx(1, rel=0.03)  # an exponential's deviation is its mean
    assert (gaps_ms > 3).mean() == pytest.approx(np.exp(-3), rel=0.1)
    np.testing.assert_array_equal(times_ns, PoissonArrivals(rate_per_s=1000, seed=3).times_ns(50))
    assert len(PoissonArrivals(rate_per_s=1000, seed=4).times_ns(50)) != len(times_ns)


@pytest.mark.parametrize(
    "text",
    ["10.5\n11\n\n12.25\n", "user,arrival_s\na,10.5\nb,11\nc,12.25\n", '"timestamp","user"\n10.5,x\n11,y\n12.25,z\n'],
)
def test_trace_begins_with_its_first_arrival(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace").write_text(text)
    trace = TraceArrivals.read(tmp_path / "trace")
    assert trace.times_ns(60).tolist() == [0, 500_000_000, 1_750_000_000]
    assert trace.times_ns(1.75).tolist() == [0, 500_000_000]  # what is due at the end is left out
    assert trace.duration_s == 1.75


@pytest.mark.parametrize("times_s", [(7.0,), (7.0, 7.0, 7.0), (7.0, 7.2)])
def test_trace_shorter_than_a_second_has_the_rate_of_one(times_s: tuple[float, ...]) -> None:
    assert TraceArrivals(times_s=times_s).rate_per_s == len(times_s)
    assert TraceArrivals(times_s=(0.0, 1.0, 4.0)).rate_per_s == 0.75


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n3\n2\n", r"arrival 3 .* is earlier than its predecessor .*Sort the trace"),
        ("", ": the arrival times are empty"),
        ("1\nnan\n", "not all finite"),
        ("1\ntwo\n", "one arrival time in seconds per line"),
        ("1,2\n3,4\n", r"columns \['1', '2'\], expected one of"),
        ("user,when\na,1\n", r"columns \['user', 'when'\], expected one of \['arrival_s'"),
    ],
)
def test_invalid_trace_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(DataError, match=rf"trace\.csv.*{message}"):
        TraceArrivals.read(tmp_path / "trace.csv")
    with pytest.raises(DataError, match="cannot be read"):
        TraceArrivals.read(tmp_path / "missing")


@pytest.mark.parametrize("rate", [0, -3, float("inf"), float("nan")])
def test_rate_that_sends_nothing_is_refused(rate: float) -> None:
    for kind in (ConstantArrivals, PoissonArrivals):
        with pytest.raises(ConfigError, match="expected a finite number greater than 0"):
            kind(rate_per_s=rate)
