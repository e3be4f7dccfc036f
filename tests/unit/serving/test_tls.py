import os
from pathlib import Path

import pytest

from serving.tls import Tls, check_readable
from tests.support.certificates import make_certificates
from workflows.errors import ConfigError


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def tls(files: Path, **names: str) -> Tls:
    given = {"certificate": "server.pem", "key": "server.key", **names}
    return Tls(**{field: files / name for field, name in given.items()})


OWN = {"client_root": "root.pem", "own_certificate": "client.pem", "own_key": "client.key"}


def test_files_that_belong_together_are_for_a_name(files: Path) -> None:
    assert tls(files).check() == "any.example.com"
    assert tls(files, **OWN).check() == "any.example.com"
    assert tls(files, certificate="root.pem", key="root.key").check() == "r"


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({"key": "client.key"}, "key values mismatch"),
        ({"certificate": "server.key"}, "PEM"),
        ({**OWN, "client_root": "other.pem"}, "certificate verify failed"),
        ({"client_root": "root.pem"}, "unsuitable certificate purpose"),  # the server's own, which is for servers
        ({**OWN, "client_root": "root.key"}, "no certificate"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(files: Path, names: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^TLS cannot be set up with .*{reason}.* Pass files that match"):
        tls(files, **names).check()


def test_files_that_cannot_be_read_are_named_before_anything_starts(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.pem does not exist"):
        tls(files, key="nothing.pem")
    with pytest.raises(ConfigError, match="own_certificate and own_key belong together"):
        tls(files, own_key="client.key")
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\)"):
        check_readable(tmp_path)
    secret = tmp_path / "key.pem"
    secret.touch(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(ConfigError, match=rf"key\.pem may not be read by user {os.geteuid()}\."):
            check_readable(secret)
    finally:
        os.seteuid(user)
