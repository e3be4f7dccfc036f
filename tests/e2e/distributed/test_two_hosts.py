"""Two hosts on one machine: network namespaces with a cable between them, names, and an ssh server each.

Nothing is shared but the file system and the processor. What one host wants of the other goes through the cable, and
the cable can be cut.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyarrow.dataset import dataset

from rankline.workflows.data.movielens.generator import generate_movielens
from tests.harness.commands.command_line import RANKLINE, recorded
from tests.harness.commands.distributed_document import DISCOVERED, HOSTS, arguments
from tests.harness.process.programs import need_program
from tests.harness.process.waiting import wait_until

pytest.importorskip("horovod", reason="Horovod is not installed: make horovod")
pytestmark = pytest.mark.in_order

ADDRESSES = {"alpha": "10.77.0.1", "beta": "10.77.0.2"}
SCHEDULER = f"tcp://{ADDRESSES['alpha']}:8786"
TRAIN = (RANKLINE, *arguments(HOSTS, {"a:4,b:4": "alpha:1,beta:1"}))
ELASTIC = (
    *(RANKLINE, *arguments(DISCOVERED), "--timeout-s", "20"),
    *("--commit-every", "25", "--batch-size", "16", "--epochs", "1000", "--early-stopping-patience", "0"),
)
TRAINED_SINCE = """
SELECT 1 FROM metrics
WHERE key = 'train_loss' AND timestamp > (SELECT MAX(timestamp) FROM metrics WHERE key = 'workers')
"""
TASKS = """
import json, sys
from distributed import Client
def tasks(dask_worker):
    return dask_worker.name, sum(entry[1] == "compute-task" for entry in dask_worker.state.log)
print(json.dumps(dict(Client(sys.argv[1]).run(tasks).values())))
"""
SSH_PORT = 2222
USER = 1000
SSHD = f"""
Port {SSH_PORT}
HostKey /etc/ssh/key
AuthorizedKeysFile /etc/ssh/key.pub
StrictModes no
UsePAM no
PidFile none
"""
SSH = f"""
Host *
    Port {SSH_PORT}
    IdentityFile /etc/ssh/key
    UserKnownHostsFile /dev/null
    StrictHostKeyChecking no
    LogLevel ERROR
"""


class Hosts:
    """Hosts alpha and beta; everything that runs on them ends with it. `directory` is for the few files of /etc."""

    def __init__(self, directory: Path) -> None:
        self._sshd = need_program("sshd", package="openssh-server", directories=[Path("/usr/sbin")])
        self._ip = need_program("ip", package="iproute2", directories=[Path("/usr/sbin")])
        for program, package in (("bwrap", "bubblewrap"), ("nsenter", "util-linux"), ("ssh", "openssh-client")):
            need_program(program, package=package)
        self._etc = directory / "etc"
        (self._etc / "ssh").mkdir(parents=True)
        names = [f"{address} {name}\n" for name, address in ADDRESSES.items()]
        files = {
            "hosts": "127.0.0.1 localhost\n" + "".join(names),
            "passwd": f"user:x:{USER}:{USER}::{directory}:/bin/sh\n",
            "ssh/sshd_config": SSHD,
            "ssh/ssh_config": SSH,
        }
        for name, text in files.items():
            (self._etc / name).write_text(text, encoding="utf-8")
        key = str(self._etc / "ssh" / "key")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        self._running = ExitStack()
        self._enter: dict[str, list[str]] = {}

    def __enter__(self) -> "Hosts":
        with ExitStack() as started:
            self._running = started
            first = self._namespace("--unshare-user", "--uid", "0", "--gid", "0")
            within = ["nsenter", "--target", str(first), "--user", "--net", "--preserve-credentials", "--"]
            second = self._namespace(within=within)
            self._enter = {"alpha": within, "beta": [*within, "nsenter", "--target", str(second), "--net", "--"]}
            self._configure("alpha", "link add eth0 type veth peer name eth0 netns", str(second))
            for name, address in ADDRESSES.items():
                self._configure(name, "link set lo up")
                self._configure(name, f"address add {address}/24 dev eth0")
                self._configure(name, "link set eth0 up")
            for name in ADDRESSES:
                self.start(name, [self._sshd, "-D", "-e"])
            for here, there in (("alpha", "beta"), ("beta", "alpha")):
                wait_until(lambda: self.run(here, ["ssh", there, "true"]).returncode == 0)  # noqa: B023  (used at once)
            self._running = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def start(
        self, host: str, command: Sequence[str | Path], *, cwd: Path | None = None, stderr: int | None = None
    ) -> "subprocess.Popen[str]":
        """Start a program."""
        process = subprocess.Popen(
            [*self._on(host), *command], cwd=cwd, stdout=subprocess.DEVNULL, stderr=stderr, text=True
        )
        self._running.enter_context(process)
        self._running.callback(process.kill)
        return process

    def run(
        self, host: str, command: Sequence[str | Path], *, cwd: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program to its end."""
        return subprocess.run([*self._on(host), *command], cwd=cwd, capture_output=True, text=True, check=False)

    def cut(self) -> None:
        """Pull the cable: what is sent is lost, and nobody is told."""
        self._configure("beta", "link set eth0 down")

    def mend(self) -> None:
        """Put it back."""
        self._configure("beta", "link set eth0 up")

    def bytes_received(self, host: str) -> int:
        """What has come through the cable."""
        link = self._configure(host, "-json -statistics link show eth0")
        return int(json.loads(link)[0]["stats64"]["rx"]["bytes"])

    def _namespace(self, *options: str, within: Sequence[str] = ()) -> int:
        """Make a network namespace that stays; a process in it."""
        reading, writing = os.pipe()
        command = ["bwrap", *options, "--unshare-net", "--dev-bind", "/", "/", "--die-with-parent"]
        holder = subprocess.Popen(
            [*within, *command, "--info-fd", str(writing), "sleep", "infinity"],
            pass_fds=[writing],
            stderr=subprocess.PIPE,
        )
        os.close(writing)
        self._running.enter_context(holder)
        self._running.callback(holder.kill)
        with os.fdopen(reading) as pipe:
            info = pipe.read()
        if not info:
            reason = holder.communicate()[1].decode().strip()
            pytest.skip(f"bubblewrap cannot make namespaces here ({reason}): allow user namespaces, or run as root")
        pid = int(json.loads(info)["child-pid"])
        wait_until(lambda: bool(Path(f"/proc/{pid}/uid_map").read_text(encoding="ascii")))
        return pid

    def _configure(self, host: str, *arguments: str) -> str:
        words = [word for argument in arguments for word in argument.split()]
        return subprocess.run([*self._enter[host], self._ip, *words], capture_output=True, text=True, check=True).stdout

    def _on(self, host: str) -> list[str]:
        """The command line, up to the program, of what runs on a host: as an ordinary user, who may log in."""
        return [
            *self._enter[host], "bwrap", "--die-with-parent", "--unshare-user", "--uid", str(USER), "--gid", str(USER),
            "--unshare-pid", "--unshare-uts", "--hostname", host,
            "--dev-bind", "/", "/", "--proc", "/proc",
            *(part for path in self._etc.iterdir() for part in ("--ro-bind", str(path), f"/etc/{path.name}")),
        ]  # fmt: skip


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with Hosts(tmp_path_factory.mktemp("hosts")) as running:
        yield running


@dataclass(frozen=True)
class Work:
    """A directory that both hosts see, with data that Dask prepared in so many `tasks` on each host."""

    path: Path
    tasks: dict[str, int]


@pytest.fixture(scope="module")
def work(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Work:
    path = tmp_path_factory.mktemp("work")
    generate_movielens(path / "ratings", num_rows=20_000, seed=5)
    dask = [sys.executable, "-m", "dask"]
    started = [hosts.start("alpha", [*dask, "scheduler", "--host", ADDRESSES["alpha"], "--no-dashboard"])]
    for host, address in ADDRESSES.items():
        worker = [
            "worker",
            SCHEDULER,
            "--name",
            host,
            "--host",
            address,
            "--nthreads",
            "1",
            "--no-nanny",
            "--no-dashboard",
        ]
        started.append(hosts.start(host, [*dask, *worker, "--local-directory", str(path / host)]))
    done = hosts.run(
        "alpha",
        [RANKLINE, "prepare", "movielens", "--data-dir", "ratings", "--dask", SCHEDULER, "--dask-timeout-s", "600"],
        cwd=path,
    )
    assert done.returncode == 0, done.stderr
    tasks = hosts.run("beta", [sys.executable, "-c", TASKS, SCHEDULER])
    for process in started:
        process.kill()
    return Work(path, json.loads(tasks.stdout))


def test_dask_prepares_on_both(work: Work) -> None:
    assert set(work.tasks) == set(ADDRESSES)
    assert min(work.tasks.values()) > 0
    prepared = work.path / "work" / "movielens" / "prepared"
    assert [dataset(prepared / split).count_rows() for split in ("train", "valid")] == [16_000, 4_000]


def test_workers_on_both_train_one_model(hosts: Hosts, work: Work) -> None:
    before = hosts.bytes_received("beta")
    done = hosts.run("alpha", [*TRAIN, "--epochs", "1"], cwd=work.path)
    assert done.returncode == 0, done.stderr
    assert float(re.findall(r"AUC (0\.\d+)", done.stdout)[0]) > 0.6
    (weights,) = (work.path / "work" / "movielens" / "model").rglob("variables.data*")
    assert (
        hosts.bytes_received("beta") - before > weights.stat().st_size
    )  # worker 0's first weights, and then gradients


def test_elastic_run_continues_without_a_lost_host_and_takes_it_back(hosts: Hosts, work: Work) -> None:
    script = work.path / "hosts.sh"
    script.write_text("#!/bin/sh\necho alpha:1\necho beta:1\n", encoding="ascii")
    script.chmod(0o755)
    training = hosts.start("alpha", ELASTIC, cwd=work.path, stderr=subprocess.PIPE)

    def wait_for_generations(*sizes: int) -> None:
        generations = "SELECT CAST(value AS INTEGER) FROM metrics WHERE key = 'workers' ORDER BY timestamp, step"
        wait_until(
            lambda: training.poll() is not None or recorded(work.path, generations) == [(size,) for size in sizes]
        )
        assert training.poll() is None, training.communicate()

    wait_for_generations(2)
    hosts.cut()
    wait_for_generations(2, 1)
    hosts.mend()
    wait_for_generations(2, 1, 2)
    wait_until(lambda: training.poll() is not None or recorded(work.path, TRAINED_SINCE))
    assert training.poll() is None, training.communicate()
    training.kill()
    notes = recorded(work.path, "SELECT value FROM tags WHERE key = 'mlflow.note.content'")  # one of each test's run
    (note,) = (note for (note,) in notes if "beta cannot be reached. 1 worker continues." in note)
    assert note.endswith("more hosts joined. 2 workers continue.")


def test_cable_that_is_cut_ends_the_run_with_one_message(hosts: Hosts, work: Work) -> None:
    before = hosts.bytes_received("beta")
    (weights,) = (work.path / "work" / "movielens" / "model").rglob("variables.data*")
    training = hosts.start(
        "alpha", [*TRAIN, "--epochs", "1000", "--timeout-s", "20"], cwd=work.path, stderr=subprocess.PIPE
    )
    wait_until(
        lambda: training.poll() is not None or hosts.bytes_received("beta") - before > 2 * weights.stat().st_size
    )
    assert training.poll() is None, training.communicate()
    hosts.cut()
    *progress, message = training.communicate()[1].splitlines()
    assert training.returncode == 1
    assert all(line.startswith("train ") for line in progress)  # a slow machine shows some
    assert "stopped responding" in message  # worker 1, or "another worker": depends on how its ssh ended
