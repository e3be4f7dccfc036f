"""Files from elsewhere: read up to a limit."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rankline.workflows.storage.untrusted import compose, read_regular


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path.name)],
    ids=["a FIFO", "a directory", "a device", "a link to itself"],
)
def test_path_that_is_no_regular_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        read_regular(tmp_path / "file", 100)


def test_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(path)
    assert read_regular(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_regular(path, 4)


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
def test_yaml_that_expands_to_too_much_is_refused(text: str, reason: str) -> None:
    with pytest.raises(yaml.YAMLError, match=reason):
        compose(text)


@pytest.mark.parametrize("text", ["a: [1, 2]", "a: &a {b: 1}\nc: *a", 'a: "' + "9" * 1_000 + '"'])
def test_other_text_is_composed_as_before(text: str) -> None:
    assert compose("") is None
    assert yaml.serialize(compose(text)) == yaml.serialize(yaml.compose(text, yaml.SafeLoader))
