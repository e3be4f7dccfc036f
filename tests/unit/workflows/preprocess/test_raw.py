import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.preprocess.raw import fingerprint_of, latest_of_each_pair

IDS = st.one_of(st.integers(0, 3), st.sampled_from([-(2**63), 2**63 - 1]))


@given(st.lists(st.tuples(IDS, IDS, st.integers(0, 3)), max_size=40))
def test_keeps_the_latest_row_of_each_pair_and_at_equal_times_the_last(rows):
    best = {}
    for number, (first, second, timestamp) in enumerate(rows):
        best[first, second] = max(best.get((first, second), (-1, -1)), (timestamp, number))
    first, second, timestamps = ([row[i] for row in rows] for i in range(3))
    keep = latest_of_each_pair(
        pa.chunked_array([pa.array(first[:5], pa.int64()), pa.array(first[5:], pa.int64())]),
        pa.chunked_array([pa.array(second, pa.int64())]),
        np.array(timestamps, dtype=np.int64),
    )
    assert sorted(np.flatnonzero(keep)) == sorted(number for _, number in best.values())


def test_the_fingerprint_depends_on_the_bytes_and_not_on_the_place(tmp_path):
    for name, content in {"a": b"1", "b": b"1", "c": b"2"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.csv").write_bytes(content)
    a, b, c = (fingerprint_of([tmp_path / name / "rows.csv"]) for name in "abc")
    assert a == b
    assert a != c
