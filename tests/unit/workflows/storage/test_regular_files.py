import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rankline.workflows.storage.regular_files import read_regular


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path.name)],
    ids=["a FIFO", "a directory", "a device", "a link to itself"],
)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        read_regular(tmp_path / "file", 100)


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(path)
    assert read_regular(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_regular(path, 4)
