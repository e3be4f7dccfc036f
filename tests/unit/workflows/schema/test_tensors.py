import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from rankline.workflows.schema.tensors import Tensor

TYPES = sorted(set(dict(model_config_pb2.DataType.items())) - {"TYPE_INVALID", "TYPE_BF16"})


@pytest.mark.parametrize("data_type", TYPES)
def test_every_type_of_triton_is_told_apart_and_has_its_names(data_type: str) -> None:
    tensor = Tensor.from_config("x", data_type, ["-1", 2])
    assert tensor.data_type == data_type
    assert tensor.numpy_dtype == np.dtype(triton_to_np_dtype(tensor.datatype))
    assert tensor.datatype == np_to_triton_dtype(tensor.numpy_dtype)
    assert (tensor.dims, tensor.is_scalar) == ((-1, 2), False)


def test_a_type_that_numpy_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="'x' is of type BF16, which NumPy does not have"):
        Tensor.from_config("x", "TYPE_BF16", [1])


@pytest.mark.parametrize(("dtype", "nothing"), [("int32", 0), ("object", b""), ("bool", False)])
def test_rows_of_nothing_have_its_shape_and_type(dtype: str, nothing: object) -> None:
    rows = Tensor(name="x", dtype=dtype, dims=(-1, 2)).zeros(3)
    assert (rows.shape, rows.dtype) == ((3, 1, 2), np.dtype(dtype))
    assert (rows == nothing).all()
