"""What the libraries are not to say."""

import os
import subprocess
import sys

import pytest

from rankline.terminal.silence import quiet_libraries, show_all, without_notices


def test_notices_go_and_all_else_stays(capfd: pytest.CaptureFixture[str]) -> None:
    with without_notices():
        os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n")
        os.write(2, b"I0000 00:00:1795386540.1 2 port.cc:153] oneDNN custom operations are on.\nE0000 it is broken\n")
        os.write(2, b"and so is this\n")
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "E0000 it is broken\nand so is this\nlater\n"


def test_what_was_written_before_an_error_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ImportError), without_notices():
        os.write(2, b"the reason\n")
        raise ImportError("libcudart.so is missing")
    assert capfd.readouterr().err == "the reason\n"


def test_tensorflow_is_imported_without_a_word() -> None:
    program = "from rankline.terminal.silence import quiet_libraries; quiet_libraries(); import tensorflow as tf; "
    program += "tf.constant(1) + 1; from importlib.resources import files; "
    program += "print(files(tf).joinpath('__init__.py').is_file())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_where_standard_error_is_closed_a_block_runs_all_the_same() -> None:
    program = "from rankline.terminal.silence import without_notices\nwith without_notices(): print('done')"
    command = ["sh", "-c", '"$0" -c "$1" 2>&-', sys.executable, program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "done\n"


def test_whoever_asks_for_all_that_libraries_say_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    try:
        show_all()
        quiet_libraries()
        assert "TF_CPP_MIN_LOG_LEVEL" not in os.environ
    finally:
        show_all(False)
