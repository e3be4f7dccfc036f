"""The terminal: tables whose cells are never cut, stages, and what libraries are not to print."""

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from rankline.terminal import console as display
from rankline.terminal.console import Stages, print_table
from rankline.terminal.silence import without_notices
from tests.harness.process.terminal import printed

COLUMNS = {"rows": ["1", "16,384"], **{f"figure {i}": [f"{i}.123456789", f"{i}"] for i in range(8)}}


@pytest.mark.parametrize("width", [20, 80, 200])
def test_no_cell_is_cut_and_the_first_column_comes_again(width: int) -> None:
    text = printed(lambda console: print_table(console, COLUMNS), width)
    assert "…" not in text
    for name, cells in COLUMNS.items():
        assert name in text
        assert all(cell in text for cell in cells)
    parts = text.count("16,384")
    assert parts == (1 if width == 200 else parts)
    assert parts > 1 or width == 200
    assert all(len(line.rstrip()) <= max(width, 22) for line in text.splitlines())


def test_markup_in_cells_takes_no_room() -> None:
    columns = {"": ["a"], "x": ["[bold red]12345[/]\n[dim]±5%[/]"], "y": ["[dim]12345[/]"]}
    assert printed(lambda console: print_table(console, columns), 30).count("a ") == 1


def test_table_below_another_leaves_out_what_it_has_nothing_of() -> None:
    columns = {"": ["auc", "rmse", "none"], "adult": ["0.91", "", ""], "a second one": ["", "38.5", ""]}
    text = printed(lambda console: print_table(console, columns), 24)
    assert text.split() == ["adult", "auc", "0.91", "a", "second", "one", "rmse", "38.5"]


@pytest.mark.parametrize(
    ("every_s", "quiet", "told"),
    [(0.0, False, [" 25%  epoch 1", " 50%  epoch 1", "100%  AUC 0.75"]), (1e6, False, []), (0.0, True, [])],
)
def test_log_is_told_how_far_a_long_stage_is(
    every_s: float, quiet: bool, told: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(display, "SAID_EVERY_S", every_s)
    console = Console(file=io.StringIO(), width=20, quiet=quiet)
    with Stages(["train"], console) as stages, stages.stage("train") as progress:
        progress.update(1, 4, "epoch 1")
        progress.update(2, 4)
        progress.update(4, 4, "AUC 0.75")
    lines = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("train     0.0 s  ") for line in lines] == told
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ("" if quiet else "train     0.0 s  AUC 0.75\n")


def test_notices_go_and_all_else_stays(capfd: pytest.CaptureFixture[str]) -> None:
    with without_notices():
        os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n")
        os.write(2, b"I0000 00:00:1795386540.1 2 port.cc:153] oneDNN custom operations are on.\nE0000 it is broken\n")
        os.write(2, b"and so is this\n")
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "E0000 it is broken\nand so is this\nlater\n"


def test_output_before_an_error_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
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
