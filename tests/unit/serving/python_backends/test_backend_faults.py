import numpy as np
import pytest
import tensorflow as tf

from rankline.serving.python_backends.requests import is_of_the_request
from rankline.workflows.core.errors import RequestError


@pytest.mark.parametrize(
    "error",
    [
        RequestError("a column is missing."),
        ValueError("lists longer than their values"),
        IndexError("id 9 is not in the table"),
        tf.errors.InvalidArgumentError(None, None, "indices[0] = 9 is not in [0, 5)"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_values_that_do_not_fit_are_the_requests_fault(error: Exception) -> None:
    assert is_of_the_request(error)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        np._core._exceptions._ArrayMemoryError((1 << 40,), np.dtype(np.int64)),
        OSError(5, "Input/output error"),
        AttributeError("'NoneType' object has no attribute 'run'"),
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
        tf.errors.InternalError(None, None, "a kernel failed"),
    ],
)
def test_memory_files_and_faults_of_ours_are_not(error: Exception) -> None:
    assert not is_of_the_request(error)
