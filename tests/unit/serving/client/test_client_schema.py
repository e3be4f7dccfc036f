import pytest
from tritonclient.grpc import model_config_pb2 as pb

from rankline.serving.client import ModelSchema
from rankline.workflows.core.errors import RequestError
from rankline.workflows.schema.tensors import Tensor


def config(*inputs: tuple[str, int, list[int], bool], max_batch_size: int = 8) -> pb.ModelConfig:
    message = pb.ModelConfig(name="m", max_batch_size=max_batch_size)
    for name, data_type, dims, optional in inputs:
        message.input.add(name=name, data_type=data_type, dims=dims, optional=optional)
    message.output.add(name="score", data_type=pb.TYPE_FP32, dims=[1])
    return message


def test_inputs_that_belong_together_are_one_column() -> None:
    schema = ModelSchema.from_config(
        config(
            ("n", pb.TYPE_INT64, [1], False),
            ("n__valid", pb.TYPE_BOOL, [1], True),
            ("price", pb.TYPE_FP32, [1], False),
            ("tags__values", pb.TYPE_STRING, [-1], False),
            ("tags__nnzs", pb.TYPE_INT32, [1], False),
            ("note", pb.TYPE_STRING, [1], True),
        )
    )
    found = {
        column.name: (column.values.name, column.lengths and column.lengths.name, column.mask and column.mask.name)
        for column in schema.columns
    }
    assert found == {
        "n": ("n", None, "n__valid"),
        "price": ("price", None, None),
        "tags": ("tags__values", "tags__nnzs", None),
        "note": ("note", None, None),
    }
    assert [column.name for column in schema.columns if not column.is_required] == ["note"]
    assert [tensor.name for tensor in schema.inputs] == ["n", "price", "tags__values", "tags__nnzs"]
    assert schema.inputs[2] == Tensor(name="tags__values", dtype="object", dims=(-1,))


def test_names_that_only_look_alike_stay_apart() -> None:
    schema = ModelSchema.from_config(
        config(
            ("a__values", pb.TYPE_INT64, [-1], False),
            ("b__nnzs", pb.TYPE_INT32, [1], False),
            ("c__values", pb.TYPE_INT64, [2, 2], False),
            ("c__nnzs", pb.TYPE_INT32, [1], False),
            ("d__valid", pb.TYPE_BOOL, [1], False),
            ("a__values__valid", pb.TYPE_INT64, [1], True),
        )
    )
    names = ["a__values", "b__nnzs", "c__values", "c__nnzs", "d__valid", "a__values__valid"]
    assert [column.name for column in schema.columns] == names
    assert not any(column.lengths or column.mask for column in schema.columns)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (config(("x", pb.TYPE_INT64, [1], False), max_batch_size=0), "'m' takes no batches"),
        (config(), "'m' has no inputs or no outputs"),
        (config(("x", pb.TYPE_BF16, [1], False)), "'x' is of type BF16"),
    ],
)
def test_models_that_cannot_be_asked_are_refused(message: pb.ModelConfig, error: str) -> None:
    with pytest.raises(RequestError, match=error):
        ModelSchema.from_config(message)
