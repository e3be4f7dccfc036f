import pytest
import yaml

from rankline.workflows.storage.safe_yaml import compose

LAUGHS = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8))])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LAUGHS, "its aliases expand to too many characters"),
        ("&a [*a]", "its aliases expand to too many characters"),
        ("a: " + "9" * 101, "a number has more than 100 digits"),
        ("a: 1" + ":59" * 101, "a number has more than 100 digits"),
        ("[" + "[]," * 50_000 + "]", "more than 100000 lines and values"),
        ("a:\n" * 100_001, "more than 100000 lines and values"),
    ],
)
def test_what_takes_long_or_stands_for_too_much_is_refused(text: str, reason: str) -> None:
    with pytest.raises(yaml.YAMLError, match=reason):
        compose(text)


@pytest.mark.parametrize("text", ["a: [1, 2]", "a: &a {b: 1}\nc: *a", 'a: "' + "9" * 1_000 + '"'])
def test_other_text_is_composed_as_before(text: str) -> None:
    assert compose("") is None
    assert yaml.serialize(compose(text)) == yaml.serialize(yaml.compose(text, yaml.SafeLoader))
