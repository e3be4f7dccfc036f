import pytest

from rankline.workflows.schema.tensor_names import argument_names, tensor_name


def test_ordinary_names_are_those_of_arguments() -> None:
    names = ["userId", "genres__values", "C1", "output", "user_2"]
    assert argument_names(names) == dict(zip(names, names, strict=True))


@pytest.mark.parametrize(
    "name", ["class", "None", "self", "torch", "inf", "int", "match", "_", "", "1st", "a b", "价格", "as_hex_41"]
)
def test_a_name_that_no_argument_can_have_is_written_in_hexadecimal(name: str) -> None:
    argument = argument_names([name, "other"])[name]
    assert argument.isidentifier()
    assert argument != name
    assert tensor_name(argument) == name


def test_names_that_differ_in_case_only_stay_apart() -> None:
    arguments = argument_names(["Fee", "fee", "FEE", "free"])
    assert len({argument.lower() for argument in arguments.values()}) == 4
    assert [tensor_name(argument) for argument in arguments.values()] == ["Fee", "fee", "FEE", "free"]
