"""The serving image without a container engine: its scripts, busybox, backends and tritonserver in a directory.

The ports are those of the image, so `python -m MODULE` runs in a network namespace of its own: `in_own_network`.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from rankline.serving.server.triton_install import find_installation, native_backends
from tests.harness.containers.deployment import CONTAINER, ROOT
from tests.harness.process.programs import need_program

GRPC = "127.0.0.1:8001"


def in_own_network(module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a module as a program in its own network and process namespaces."""
    isolated = ["--unshare-net", "--unshare-pid", "--dev-bind", "/", "/", "--proc", "/proc", "--die-with-parent"]
    command = [need_program("bwrap", package="bubblewrap"), *isolated, sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def make_image(directory: Path) -> None:
    """Lay the image out below a directory: `bin`, `backends` and `state`, which is /var/lib/rankline there."""
    programs, backends = directory / "bin", directory / "backends"
    programs.mkdir()
    (directory / "state").mkdir()
    shutil.copy(need_program("busybox", package="busybox"), programs / "busybox")
    subprocess.run([programs / "busybox", "--install", "-s", programs], check=True)
    for script in (CONTAINER / "bin").iterdir():
        text = script.read_text(encoding="utf-8").replace("/opt/rankline", str(directory))
        (programs / script.name).write_text(text.replace("/var/lib/rankline", f"{directory}/state"), encoding="utf-8")
        (programs / script.name).chmod(0o755)
    native, installation = native_backends(), find_installation()
    for name, file in native.objects.items():
        (backends / name).mkdir(parents=True)
        (backends / name / file.name).symlink_to(file)
    for name, file in native.libraries.items():
        library = "libtensorflow_cc.so.2" if name == "tensorflow" else f"lib{name}.so"
        (backends / name / library).symlink_to(file)
    libraries = ":".join(map(str, installation.libraries))
    server = programs / "tritonserver"
    server.write_text(f'#!{programs}/sh\nLD_LIBRARY_PATH={libraries} exec {installation.server} "$@"\n')
    server.chmod(0o755)


class RunningImage:
    """The image's entry point, as a container runs it."""

    def __init__(self, directory: Path, repository: Path) -> None:
        self._directory, self._repository = directory, repository
        self._log = directory / "log"

    def start(self) -> None:
        """Run `serve`, which may be running no more."""
        programs = self._directory / "bin"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [programs / "serve", self._repository], env={"PATH": str(programs)}, stderr=log, stdout=log
            )

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def said(self) -> list[str]:
        """What `serve` itself has said."""
        lines = self.log.splitlines()
        return [line.removeprefix("rankline: ") for line in lines if line.startswith("rankline: ")]

    @property
    def is_healthy(self) -> bool:
        done = subprocess.run([self._directory / "bin/healthy"], env={"PATH": f"{self._directory}/bin"}, check=False)
        return done.returncode == 0

    @property
    def server(self) -> psutil.Process | None:
        """The process of tritonserver."""
        try:
            children = psutil.Process(self._process.pid).children()
            return next((child for child in children if child.name() == "tritonserver"), None)
        except psutil.NoSuchProcess:
            return None

    def kill_all(self) -> None:
        """As an engine ends a container whose first process was killed."""
        first = psutil.Process(self._process.pid)
        first.suspend()  # it starts no more
        processes = first.children(recursive=True)
        self._process.kill()
        self._process.wait()
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # such as the `sleep` of a pause
                process.kill()
        psutil.wait_procs(processes)

    def stop(self) -> int:
        """Its exit status after SIGTERM."""
        self._process.terminate()
        return self._process.wait()


@contextmanager
def running_image(directory: Path, repository: Path) -> Iterator[RunningImage]:
    """The image, serving an exported ensemble."""
    make_image(directory)
    image = RunningImage(directory, repository)
    image.start()
    try:
        yield image
    except BaseException:
        print(image.log)
        raise
    finally:
        status = image.stop()
    assert status == 0, image.log
