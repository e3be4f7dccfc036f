"""Make the pictures of README and documents from a real run: `make pictures`.

It runs the demo in a terminal of 100 columns (tmux), and takes the report and MLflow's pages in a browser (Chromium):
`apt-get install tmux chromium`. Run it on an idle machine, since the pictures show figures.
"""

import io
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
RANKLINE = ROOT / ".venv" / "bin" / "rankline"
WIDTH = 100
BROWSER = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
_MAX_S = 900
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # the picture must not load fonts from elsewhere


def terminal(command: str, directory: Path, title: str, picture: Path) -> None:
    """Run a command in tmux, and draw what is on the screen when it ends."""
    done = directory / "done"
    session = f"rankline-{directory.name}"
    line = f"{RANKLINE} {command}; touch {done}; sleep 60"
    subprocess.run(
        ["tmux", "new-session", "-d", "-s", session, "-x", str(WIDTH), "-y", "50", line], cwd=directory, check=True
    )
    try:
        limit = time.monotonic() + _MAX_S
        while not done.exists() and time.monotonic() < limit:
            time.sleep(0.5)
        screen = subprocess.check_output(["tmux", "capture-pane", "-p", "-e", "-t", session], text=True)
    finally:
        subprocess.run(["tmux", "kill-session", "-t", session], check=False)
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(screen.rstrip()))
    picture.write_text(_FONT.sub("", console.export_svg(title=title)), encoding="utf-8")


def screenshot(address: str, picture: Path, width: int, height: int, *options: str) -> None:
    size = [f"--window-size={width},{height}", f"--screenshot={picture}"]
    subprocess.run([*BROWSER, *size, *options, address], check=True, stderr=subprocess.DEVNULL)


@contextmanager
def mlflow(directory: Path) -> Iterator[str]:
    """Yield the address of the first page that `rankline ui` prints."""
    process = subprocess.Popen(
        [RANKLINE, "ui", "--port", "0", "--no-open"], cwd=directory, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    if missing := [program for program in ("tmux", BROWSER[0]) if shutil.which(program) is None]:
        sys.exit(f"Error: {' and '.join(missing)} are missing: apt-get install {' '.join(missing)}")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pictures-") as name:
        directory = Path(name)
        run = "run movielens"
        terminal(run, directory, f"rankline {run}", PICTURES / "terminal.svg")
        screenshot((directory / "work/movielens/report.html").as_uri(), PICTURES / "report.png", 1280, 1480)
        for choices in ("--embedding-dim 16", "--dropout 0.2"):  # runs to compare
            subprocess.run([RANKLINE, *shlex.split(f"train movielens {choices}")], cwd=directory, check=True)
        with mlflow(directory) as address:
            screenshot(address, PICTURES / "runs.png", 1600, 1000, "--virtual-time-budget=30000")


if __name__ == "__main__":
    main()
