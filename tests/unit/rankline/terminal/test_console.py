"""The terminal: tables whose cells are never cut, stages, reports, and what libraries are not to print."""

import io
import os
import re
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from rankline.serving.loadtest.compare import compare
from rankline.serving.loadtest.report.report import LoadResult
from rankline.serving.loadtest.runs import Load
from rankline.serving.loadtest.server_breakdown import Breakdown, StepTimes
from rankline.terminal import console as display
from rankline.terminal.bench_table import print_comparison, print_report
from rankline.terminal.console import Stages, print_table, show
from rankline.terminal.silence import without_notices
from tests.factories.recorders import printed
from tests.factories.reports import report_of, result_of

COLUMNS = {"rows": ["1", "16,384"], **{f"figure {i}": [f"{i}.123456789", f"{i}"] for i in range(8)}}


@pytest.mark.parametrize("width", [20, 200])
def test_wide_tables_wrap_without_cutting_cells(width: int) -> None:
    text = printed(lambda console: print_table(console, COLUMNS), width)
    assert "…" not in text
    for name, cells in COLUMNS.items():
        assert name in text
        assert all(cell in text for cell in cells)
    parts = text.count("16,384")
    assert parts == (1 if width == 200 else parts)
    assert parts > 1 or width == 200
    assert all(len(line.rstrip()) <= max(width, 22) for line in text.splitlines())


@pytest.mark.parametrize("width", [40, 80, 120])
def test_text_wraps_between_words_and_keeps_paths_whole(width: int) -> None:
    path = "/a/very/long/path/" + "directory-with-hyphens/" * 5 + "report.html"
    text = f"[bold]p50 17.53 ms[/] with --batch-size 64, while {path} has all figures of the run that was measured"
    file = io.StringIO()
    show(Console(file=file, width=width, force_terminal=True, color_system=None), text, "  key", 8)
    lines = file.getvalue().splitlines()
    assert " ".join(" ".join(lines).split()) == "key " + " ".join(Text.from_markup(text).plain.split())
    assert path in {line.strip() for line in lines}
    assert all(len(line) <= width for line in lines if path not in line)
    assert lines[0].startswith("  key   p50")
    assert {line[:8] for line in lines[1:]} == {" " * 8}


def test_logs_get_unwrapped_lines() -> None:
    assert printed(lambda console: show(console, "word " * 40), 20).splitlines() == [("word " * 40).rstrip()]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_result_of_a_stage_is_shown_whole(width: int) -> None:
    file = io.StringIO()
    result = "AUC 0.6548, logloss 0.5902, mean score / mean label 0.9979, calibration error 0.0123, GAUC 0.6021"
    with Stages(
        ["prepare", "train"], Console(file=file, width=width, force_terminal=True, color_system=None)
    ) as stages:
        with stages.stage("prepare") as progress:
            progress.update(1, 1, "80 rows")
        with stages.stage("train") as progress:
            progress.update(1, 1, result)
    last = file.getvalue().rpartition("✓ prepare")[2]
    assert result in " ".join(last.split())
    assert "…" not in last


def test_time_of_a_stage_ends_with_it() -> None:
    file, now_s = io.StringIO(), [0.0]
    stages = Stages(["prepare", "train"], Console(file=file, width=80, force_terminal=True, color_system=None))
    stages._progress.get_time = lambda: now_s[0]
    with stages:
        for name, seconds in (("prepare", 3), ("train", 40)):
            with stages.stage(name):
                now_s[0] += seconds
    last = file.getvalue().rpartition("✓ prepare")[2]
    assert re.findall(r"(\d+) s", last) == ["3", "40"]


@pytest.mark.parametrize(
    ("every_s", "quiet", "told"),
    [(0.0, False, [" 25%  epoch 1", " 50%  epoch 1", "100%  AUC 0.75"]), (1e6, False, []), (0.0, True, [])],
)
def test_log_shows_the_progress_of_a_long_stage(
    every_s: float, quiet: bool, told: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(display, "SAID_EVERY_S", every_s)
    console = Console(file=io.StringIO(), width=20, quiet=quiet)
    with Stages(["train"], console) as stages, stages.stage("train") as progress:
        progress.update(1, 4, "epoch 1")
        progress.update(2, 4)
        progress.update(4, 4, "AUC 0.75")
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"^train +\d+\.\d s  ", "", line) for line in lines] == told
    assert isinstance(console.file, io.StringIO)
    assert re.fullmatch("" if quiet else r"train +\d+\.\d s  AUC 0\.75\n", console.file.getvalue())


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


@pytest.mark.slow
def test_tensorflow_is_imported_without_a_word() -> None:
    program = "from rankline.terminal.silence import quiet_libraries; quiet_libraries(); import tensorflow as tf; "
    program += "tf.constant(1) + 1; from importlib.resources import files; "
    program += "print(files(tf).joinpath('__init__.py').is_file())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_closed_standard_error_does_not_stop_a_block() -> None:
    program = "from rankline.terminal.silence import without_notices\nwith without_notices(): print('done')"
    command = ["sh", "-c", '"$0" -c "$1" 2>&-', sys.executable, program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "done\n"


STEP = StepTimes(queue_ms=1, input_ms=2, infer_ms=3, output_ms=4)
BREAKDOWN = Breakdown(total_ms=14, client_ms=1, network_ms=2, steps={"movielens_transform_v1": STEP}, remainder_ms=1)


def report(*results: LoadResult, **changes: Any) -> str:
    return printed(partial(print_report, report_of(*results, **changes)))


def test_figure_not_reported_is_a_dash_with_its_reason() -> None:
    text = report(*(result_of(Load(batch_size=size, concurrency=1), breakdown=BREAKDOWN) for size in (1, 64, 16384)))
    assert "one request at a time over gRPC" in text
    line = next(line for line in text.splitlines() if line.strip().startswith("16,384"))
    cells = line.split()
    assert [cells[5], cells[7]] == ["–", "26,214,400"]
    assert [float(cell) for cell in (*cells[1:5], cells[6])] == pytest.approx([200, 360, 380, 396, 400], rel=0.001)
    assert "p99.9 not reported: 400 samples, at least 3,688 required" in text
    assert re.search(r"1 row +[\d.]+ +[\d.]+", text.partition("where the time of a request goes")[2])
    assert "features" in text
    assert "…" not in text


def compared(*results: LoadResult, max_regression: float = 0.1) -> str:
    before = report_of(result_of(), result_of(Load(batch_size=64, concurrency=1)), environment={"cpu": "one"})
    now = report_of(*results, environment={"cpu": "two"})
    return printed(partial(print_comparison, compare(before, now, max_regression)), 90)


def test_comparison_shows_each_change_its_uncertainty_and_what_is_missing() -> None:
    text = compared(result_of(), result_of(Load(batch_size=1, rate_per_s=5.0, arrivals="poisson")))
    (line,) = (line for line in text.splitlines() if "p50 ms, 1 row" in line)
    before, now, change, low, _, high, verdict = line.split()[4:]
    assert (before, change, verdict) == (now, "+0.0%", "inconclusive")
    assert low.startswith("-")
    assert high.startswith("+")
    assert "64 rows was not measured in this run" in text
    assert "1 row at 5 requests/s (poisson) was not measured in the earlier run" in text
    assert "cpu was one, is two" in text
    assert "no significant regression beyond 10%" in text


def test_regression_is_marked_with_its_certainty() -> None:
    slow = result_of(latencies_ms=range(2, 802, 2))
    sure, unsure = compared(slow, max_regression=0.3), compared(slow, max_regression=0.95)
    assert {figure: verdict_of(sure, figure) for figure in ("p50 ms", "p99 ms")} == {
        "p50 ms": "worse",
        "p99 ms": "worse",
    }
    assert "2 worse by more than 30%" in sure
    assert {figure: verdict_of(unsure, figure) for figure in ("p50 ms", "p99 ms")} == {
        "p50 ms": "inconclusive",  # its interval is the wider one
        "p99 ms": "worse",
    }
    assert "1 inconclusive: the interval includes the limit of 95%" in unsure
    few = compared(result_of(latencies_ms=range(2, 8, 2)), max_regression=0)
    assert "inconclusive: without a usable interval. Measure longer" in few
    assert "1 worse by more than 95%" in unsure


def verdict_of(text: str, figure: str) -> str:
    (line,) = (line for line in text.splitlines() if figure in line)
    return line.split()[-1]


@pytest.mark.parametrize("rate", [None, 123_456.0])
def test_summary_fits_80_columns_and_starts_with_the_conclusion(rate: float | None) -> None:
    loads = [Load(batch_size=n, concurrency=None if rate else 4, rate_per_s=rate, arrivals=None) for n in (1, 16_384)]
    slow = [result_of(load, [3393.456 * 1000] * 4000, breakdown=BREAKDOWN) for load in loads]
    text = report(*slow, busy="load 4.0")
    assert "…" not in text
    for found in slow:
        for metric in ("p50_ms", "p99_ms", "p999_ms", "max_ms"):
            assert f"{found.value(metric):.2f}" in text
    assert all(len(line) <= 80 for line in text.splitlines() if line.strip()[:1].isdigit() and "row" not in line)
    lines = [line for line in text.splitlines() if line.strip()]
    assert lines[1].startswith("1 row")
    assert "the machine was busy (load 4.0)" in text.partition("p90")[0]
