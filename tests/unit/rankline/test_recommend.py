"""Users as an ensemble takes them; what a server is asked for is tested with one, in tests/integration."""

import pytest

from rankline.recommend import typed_user
from serving.client import ModelSchema, TensorSchema
from workflows.errors import ConfigError


def schema(datatype: str) -> ModelSchema:
    return ModelSchema(
        name="m",
        inputs=(TensorSchema(name="user", datatype=datatype, dims=(1,)),),
        outputs=(TensorSchema(name="score", datatype="FP32", dims=(1,)),),
        max_batch_size=8,
    )


@pytest.mark.parametrize(
    ("user", "datatype", "expected"), [("1", "INT64", 1), (1, "INT64", 1), ("A2IB", "BYTES", "A2IB"), (1, "BYTES", "1")]
)
def test_users_are_numbers_or_texts_as_the_ensemble_says(user: int | str, datatype: str, expected: int | str) -> None:
    assert typed_user(user, schema(datatype), "user") == expected


def test_a_name_is_refused_where_users_are_numbers() -> None:
    with pytest.raises(ConfigError, match="user is 'A2IB', and the users of this ensemble are whole numbers"):
        typed_user("A2IB", schema("INT64"), "user")
