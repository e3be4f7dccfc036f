"""Users as an ensemble takes them; what a server is asked for is tested with one, in tests/integration."""

import pytest

from rankline.recommend import typed_user
from serving.client import ModelSchema
from workflows.errors import ConfigError
from workflows.tensors import Tensor


def schema(dtype: str) -> ModelSchema:
    return ModelSchema(
        name="m",
        inputs=(Tensor(name="user", dtype=dtype, dims=(1,)),),
        outputs=(Tensor(name="score", dtype="float32", dims=(1,)),),
        max_batch_size=8,
    )


@pytest.mark.parametrize(
    ("user", "dtype", "expected"), [("1", "int64", 1), (1, "int64", 1), ("A2IB", "object", "A2IB"), (1, "object", "1")]
)
def test_users_are_numbers_or_texts_as_the_ensemble_says(user: int | str, dtype: str, expected: int | str) -> None:
    assert typed_user(user, schema(dtype), "user") == expected


def test_a_name_is_refused_where_users_are_numbers() -> None:
    with pytest.raises(ConfigError, match="user is 'A2IB', but users of this ensemble are whole numbers"):
        typed_user("A2IB", schema("int64"), "user")
