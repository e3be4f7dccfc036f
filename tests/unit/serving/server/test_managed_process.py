"""What a program that is started can keep from other users."""

import os
import sys
from pathlib import Path

import pytest

from rankline.serving.server.logs import FileLog
from rankline.serving.server.managed_process import Launched, remove_left

SHOWS_ITSELF = "import sys; print(sys.argv[1:]); print(open('/proc/self/cmdline').read().split(chr(0))[:-1])"


def run(tmp_path: Path, *command: str, hidden: tuple[str, ...]) -> list[str]:
    """The lines that a program says."""
    log = FileLog(tmp_path / "log")
    home = tmp_path / f"rankline-test-{os.getpid()}"
    launched = Launched(home, log, environment=dict(os.environ), stop_timeout_s=5)
    launched.run(*command, hidden=hidden)
    assert launched.wait() == 0
    launched.stop()
    said = log.text().splitlines()
    log.close()
    return said


@pytest.mark.parametrize("hidden", [(), ("--key=s3cret", "--other=ä b"), tuple(f"--n{n}={n}" for n in range(12))])
def test_a_program_gets_hidden_arguments_that_are_not_in_the_list_of_processes(
    tmp_path: Path, hidden: tuple[str, ...]
) -> None:
    command = (sys.executable, "-c", SHOWS_ITSELF, "--port=1")
    got, shown = run(tmp_path, *command, hidden=hidden)
    assert got == str(["--port=1", *hidden])
    assert shown == str([*command, *("-" for _ in hidden)])


def test_what_a_killed_launcher_left_goes_with_the_next_start(tmp_path: Path) -> None:
    name = f"rankline-test-{os.getpid()}"
    running, killed, young = (tmp_path / f"{name}-{kind}" for kind in ("running", "killed", "young"))
    segment = Path("/dev/shm", f"{killed.name}-0")
    segment.touch()
    log = FileLog(tmp_path / "log")
    launched = Launched(running, log, environment=dict(os.environ), stop_timeout_s=5)
    for home in (killed, young):
        home.mkdir()
    for home in (running, killed):
        os.utime(home, (0, 0))
    remove_left(tmp_path, name)
    assert [home.exists() for home in (running, killed, young)] == [True, False, True]
    assert not segment.exists()
    launched.stop()
    log.close()
    assert not running.exists()
