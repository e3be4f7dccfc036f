import errno
import os
import socket
from pathlib import Path

import pytest

from rankline.serving.server.ports import choose_ports
from rankline.workflows.core.errors import ServerError


def test_no_port_is_chosen_twice_and_none_that_a_connection_could_be_given() -> None:
    chosen = choose_ports(**{f"port_{number}": 0 for number in range(100)}).values()
    assert len(set(chosen)) == 100
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert first <= 10_000 or all(10_000 <= port < first for port in chosen)


@pytest.mark.parametrize("said", ["1024\t65535\n", None])
def test_where_connections_are_given_any_port_or_nobody_says_which_servers_are_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None
) -> None:
    if said:
        (tmp_path / "range").write_text(said)
    monkeypatch.setattr("rankline.serving.server.ports._OF_CONNECTIONS", tmp_path / "range")
    assert len({*choose_ports(one=0, other=0).values(), 0}) == 3


def test_a_process_that_was_started_meanwhile_keeps_none_from_its_server() -> None:
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


def test_one_that_cannot_be_had_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ServerError, match="grpc_port .* on 127.0.0.1 is already in use. Stop what uses it"),
    ):
        choose_ports(grpc_port=taken.getsockname()[1])

    def refuse(number: int) -> int:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr("rankline.serving.server.ports._bound", refuse)
    with pytest.raises(ServerError, match="any 80 on 127.0.0.1 cannot be opened .* Try another"):
        choose_ports(any=80)
