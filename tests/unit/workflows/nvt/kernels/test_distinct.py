import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.nvt.kernels.distinct import sorted_distinct


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@given(values=st.lists(st.integers(0, 20) | st.integers(0, 2**63 - 1)))
def test_each_value_is_there_once_and_in_order(dtype: type[np.generic], values: list[int]) -> None:
    found = sorted_distinct(np.array(values, dtype))
    assert found.dtype == dtype
    assert found.tolist() == sorted(set(values))
