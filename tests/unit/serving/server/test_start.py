"""Starting servers: their configuration, ports, processes, logs, and pauses between starts."""

import errno
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.serving.server.logs import FileLog, crash_site, failure_reason
from rankline.serving.server.managed_process import Launched, remove_left
from rankline.serving.server.ports import choose_ports
from rankline.serving.server.supervisor import Backoff, config_of
from rankline.serving.server.triton_install import find_installation
from rankline.workflows.core.errors import ConfigError, ServerError

# Lines of release 24.10, shortened.
BAD_MODEL_LOG = r"""
I1120 10:21:55.487300 16080 cuda_memory_manager.cc:117] "CUDA memory pool disabled"
E1120 10:21:55.487409 16080 server.cc:241] "CudaDriverHelper has not been initialized."
E1120 10:21:55.488353 16080 model_repository_manager.cc:1460] "Poll failed for model directory 'b': unexpected pair"
E1120 10:21:59.802904 16080 backend_model.cc:692] "ERROR: Failed to create instance: TritonModelException: no SavedModel.\n\nAt:\n  /t/model.py(65): initialize\n"
E1120 10:21:59.803020 16080 model_lifecycle.cc:642] "failed to load 'a' version 1: Internal: TritonModelException: no SavedModel.\n\nAt:\n  /t/model.py(65): initialize\n"
I1120 10:21:59.803057 16080 model_lifecycle.cc:777] "failed to load 'a'"
error: creating server: Internal - failed to load all models
"""  # noqa: E501


def config(**changes: object) -> ServerConfig:
    return ServerConfig(**{"repositories": (Path("models"),), **changes})  # type: ignore[arg-type]


def test_config_refuses_what_cannot_be_served() -> None:
    with pytest.raises(ConfigError, match="at least one directory"):
        config(repositories=())
    with pytest.raises(ConfigError, match="grpc_port is 70000, expected 0"):
        config(grpc_port=70000)
    with pytest.raises(ConfigError, match="grpc_port and http_port are both 8001, expected different ports"):
        config(grpc_port=8001, http_port=8001)
    config(grpc_port=0, http_port=0, metrics_port=0)


@pytest.mark.parametrize(
    ("port", "http_port", "metrics_port"),
    [
        (0, None, 0),
        (8001, None, 8002),
        (8001, 8002, 8003),
        (8001, 8000, 8002),
        (8001, 0, 8002),
        (65534, 65535, 0),
        (65535, None, 0),
    ],
)
def test_metrics_use_the_first_port_after_grpc_that_http_does_not_use(
    port: int, http_port: int | None, metrics_port: int
) -> None:
    ensemble = SimpleNamespace(path=Path("models"), name="movielens")
    found = config_of(ensemble, port=port, http_port=http_port)  # type: ignore[arg-type]
    assert (found.grpc_port, found.http_port, found.metrics_port) == (port, http_port, metrics_port)


def test_failure_reason_names_each_model_without_its_traceback() -> None:
    assert set(failure_reason(BAD_MODEL_LOG).splitlines()) == {
        "Model 'a': no SavedModel.",
        "Model 'b': unexpected pair",
    }


def test_failure_reason_without_a_model_is_the_last_error_or_line() -> None:
    assert (
        failure_reason('x\nE1120 10:21:55.487409 1 main.cc:1] "failed to start GRPC"\nbye\n') == "failed to start GRPC"
    )
    assert failure_reason("loading\nlibfoo.so: cannot open shared object file\n") == (
        "libfoo.so: cannot open shared object file"
    )
    assert failure_reason(BAD_MODEL_LOG.splitlines()[2] + "\nbye\n") == "bye"
    assert failure_reason("") == "It wrote no log."


def test_missing_triton_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankline.serving.server.triton_install.find_spec", lambda _: None)
    with pytest.raises(ServerError, match="pip install .*nvidia-pytriton=="):
        find_installation()


def test_crash_site_is_read_from_the_stack() -> None:
    thrown = """terminate called after throwing an instance of 'boost::interprocess::lock_exception'
Signal (6) received.
 0# 0x0000563D28B7752D in /opt/tritonserver/bin/tritonserver
 1# 0x00007F82CCC5A050 in /lib/x86_64-linux-gnu/libc.so.6
 2# abort in /lib/x86_64-linux-gnu/libc.so.6
 3# __gxx_personality_v0 in /lib/x86_64-linux-gnu/libstdc++.so.6
 4# _Unwind_RaiseException in /lib/x86_64-linux-gnu/libgcc_s.so.1
 5# 0x00007F82C7C393CA in /opt/backends/python/libtriton_python.so
 6# __libc_start_main in /lib/x86_64-linux-gnu/libc.so.6
"""
    assert crash_site("started\n" + thrown) == "libtriton_python.so, called by __libc_start_main (libc.so.6)"
    assert crash_site(thrown.partition(" 3#")[0]) == "abort (libc.so.6)"
    assert crash_site("Signal (15) received.\nthe end\n") == ""


def test_chosen_ports_differ_and_are_not_ephemeral() -> None:
    chosen = choose_ports(**{f"port_{number}": 0 for number in range(100)}).values()
    assert len(set(chosen)) == 100
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert first <= 10_000 or all(10_000 <= port < first for port in chosen)


@pytest.mark.parametrize("said", ["1024\t65535\n", None])
def test_ports_are_chosen_where_the_ephemeral_range_is_full_or_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None
) -> None:
    if said:
        (tmp_path / "range").write_text(said)
    monkeypatch.setattr("rankline.serving.server.ports._OF_CONNECTIONS", tmp_path / "range")
    assert len({*choose_ports(one=0, other=0).values(), 0}) == 3


def test_chosen_ports_are_free_despite_a_forked_process() -> None:
    """It has a copy of all that is open, until it becomes another program."""
    copies: list[int] = []

    class Copied(socket.socket):
        def close(self) -> None:
            copies.append(os.dup(self.fileno()))
            super().close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "socket", Copied)
        chosen = choose_ports(one=0, other=0, third=0).values()
    try:
        assert len(copies) == 3
        for number in chosen:
            with socket.create_server(("127.0.0.1", number)):  # with SO_REUSEADDR, as servers do
                pass
    finally:
        for copy in copies:
            os.close(copy)


def test_port_that_cannot_be_opened_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ServerError, match="grpc_port .* on 127.0.0.1 is already in use. Stop the process that uses it"),
    ):
        choose_ports(grpc_port=taken.getsockname()[1])

    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(
            ServerError, match="metrics_port .* already in use.* By default, it is chosen next to that of gRPC"
        ),
    ):
        EmbeddedServer(config(repositories=(Path(),), metrics_port=taken.getsockname()[1])).start()

    def refuse(number: int) -> int:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr("rankline.serving.server.ports._bound", refuse)
    with pytest.raises(ServerError, match="any 80 on 127.0.0.1 cannot be opened .* Try another"):
        choose_ports(any=80)


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
def test_hidden_arguments_reach_the_program_and_not_the_process_list(tmp_path: Path, hidden: tuple[str, ...]) -> None:
    command = (sys.executable, "-c", SHOWS_ITSELF, "--port=1")
    got, shown = run(tmp_path, *command, hidden=hidden)
    assert got == str(["--port=1", *hidden])
    assert shown == str([*command, *("-" for _ in hidden)])


def test_next_start_removes_leftovers_of_a_killed_launcher(tmp_path: Path) -> None:
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


def test_backoff_grows_and_resets_after_a_long_run() -> None:
    now_s = 0.0
    backoff = Backoff(lambda: now_s)

    def end_after(duration_s: float) -> float:
        nonlocal now_s
        backoff.note_start()
        now_s += duration_s
        return backoff.note_end()

    assert [end_after(1.0) for _ in range(5)] == [0, 1, 2, 2, 2]  # crashes
    assert end_after(60.0) == 0
    assert [backoff.note_end() for _ in range(6)] == [1, 2, 4, 8, 10, 10]  # starts that fail
    assert [backoff.note_end() for _ in range(2000)][-1] == 10
    assert not backoff.is_due
    now_s += 10
    assert backoff.is_due
