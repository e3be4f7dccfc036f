import os
from pathlib import Path
from typing import Any

import pytest

from rankline.serving.client import Client, ClientConfig, ClientTls
from rankline.serving.client.core import by_scheme
from rankline.workflows.core.errors import ConfigError, RanklineError


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"timeout_s": 0}, r"timeout_s is 0, .*s may be 0\)\."),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"backoff_s": -1}, "backoff_s is"),
        ({"connect_timeout_s": -1}, "connect_timeout_s is"),
        ({"transport": "pigeon"}, r"unknown transport 'pigeon'\. Available: grpc, http"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        ClientConfig(**options)


def test_certificate_without_key_or_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="requires its key"):
        ClientTls(certificate=tmp_path)
    with pytest.raises(ConfigError, match="nothing.pem does not exist"):
        ClientTls(root=tmp_path / "nothing.pem")
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\)"):
        ClientTls(root=tmp_path)
    (secret := tmp_path / "key.pem").touch(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(ConfigError, match=rf"key\.pem is not readable by user {os.geteuid()}\."):
            ClientTls(root=secret)
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(
    ("url", "chosen", "expected"),
    [
        ("host:8001", "grpc", ("host:8001", "grpc", None)),
        ("host:8000", "http", ("host:8000", "http", None)),
        ("http://host:8000", "grpc", ("host:8000", "http", None)),
        ("http://host:8000/", "http", ("host:8000", "http", None)),
        ("http://host:8000/v2/models/movielens", "grpc", ("host:8000", "http", None)),
        ("http://host/proxied/v2", "grpc", ("host/proxied", "http", None)),
        ("https://host", "http", ("host", "http", ClientTls())),
        ("grpc://host:8001/", "grpc", ("host:8001", "grpc", None)),
        ("grpcs://host:8001", "grpc", ("host:8001", "grpc", ClientTls())),
        ("dns:///host:8001", "grpc", ("dns:///host:8001", "grpc", None)),
        ("ipv4:1.2.3.4:8001,1.2.3.5:8001", "grpc", ("ipv4:1.2.3.4:8001,1.2.3.5:8001", "grpc", None)),
    ],
)
def test_scheme_chooses_the_transport(url: str, chosen: str, expected: Any) -> None:
    address, config = by_scheme(url, ClientConfig(transport=chosen))
    assert (address, config.transport, config.tls) == expected


def test_scheme_that_contradicts_the_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="grpc://host requires gRPC, but transport is 'http'"):
        Client("grpc://host", "movielens", ClientConfig(transport="http"))
    (tmp_path / "root.pem").touch()
    own = ClientTls(root=tmp_path / "root.pem")
    assert by_scheme("https://host", ClientConfig(tls=own))[1].tls == own


@pytest.mark.parametrize(
    "url", ["", "http://", "http://a:b", "http://[::1", "host:99999", "http://127.0.0.1:0", "a b:1"]
)
def test_invalid_addresses_are_refused_in_one_line(url: str) -> None:
    with pytest.raises(RanklineError) as told:
        Client(url, "movielens", timeout_s=5)
    assert "\n" not in str(told.value)
