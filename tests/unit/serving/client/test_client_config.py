import asyncio
from pathlib import Path
from typing import Any

import pytest

from serving.client import AsyncClient, Client, ClientConfig, ClientTls
from serving.client.config import LONGEST_PAUSE_S
from workflows.errors import ConfigError, ServerError


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"timeout_s": 0}, "timeout_s is 0, .*expected more than 0"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"backoff_s": -1}, "backoff_s -1"),
        ({"connect_timeout_s": -1}, "connect_timeout_s -1"),
        ({"transport": "pigeon"}, r"transport is 'pigeon'\. Available: grpc, http"),
        ({"transport": "http", "shared_memory": True}, "shared memory goes with transport 'grpc'"),
    ],
)
def test_options_out_of_their_range_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        ClientConfig(**options)


def test_a_certificate_without_its_key_or_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="belong together"):
        ClientTls(certificate=tmp_path)
    with pytest.raises(ConfigError, match="nothing.pem does not exist"):
        ClientTls(root=tmp_path / "nothing.pem")


def test_pauses_double_and_spread() -> None:
    config = ClientConfig(backoff_s=0.1)
    assert [config.pause_s(attempt, 1.0) for attempt in range(3)] == pytest.approx([0.1, 0.2, 0.4])
    assert config.pause_s(0, 0.0) == pytest.approx(0.05)
    assert config.pause_s(9_999, 1.0) == LONGEST_PAUSE_S


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(ClientConfig(key="secret"))


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_nobody_at_the_address(transport: str) -> None:
    with pytest.raises(ServerError, match="no Triton server answers at 127.0.0.1:1 "):
        Client("127.0.0.1:1", "movielens", ClientConfig(transport=transport))


def test_https_without_tls_is_refused() -> None:
    config = ClientConfig(transport="http", timeout_s=1)

    async def ask() -> None:
        async with AsyncClient("https://127.0.0.1:1", "movielens", config) as client:
            await client.predict({"user": [1]})

    with pytest.raises(ConfigError, match=r"https://127.0.0.1:1 asks for TLS, which the config lacks\. Give "):
        Client("https://127.0.0.1:1", "movielens", config)
    with pytest.raises(ConfigError, match="asks for TLS"):
        asyncio.run(ask())
    with pytest.raises(ServerError, match="no Triton server answers"):
        Client("http://127.0.0.1:1", "movielens", config)
