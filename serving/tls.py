"""TLS files of a server, and checks of them before it starts."""

import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflows.errors import ConfigError

_MOST_FLIGHTS = 4  # messages that each side of a handshake sends, at most


def check_readable(*files: Path | None) -> None:
    """Refuse PEM files that are missing, or that the user of this process may not read.

    Raises:
        ConfigError: names the file.
    """
    for file in filter(None, files):
        try:
            file.open("rb").close()
        except FileNotFoundError:
            raise ConfigError(f"{file} does not exist. Give certificates and keys as PEM files.") from None
        except PermissionError:
            raise ConfigError(f"{file} may not be read by user {os.geteuid()}. Let this user read it.") from None
        except OSError as error:
            raise ConfigError(f"{file} cannot be read ({os.strerror(error.errno or 0)}). Give a PEM file.") from None


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Files for encrypted gRPC, in PEM.

    Attributes:
        certificate, key: of the server.
        client_root: root certificates that must have signed client certificates; None does not request any.
        own_certificate, own_key: client certificate and key of the process that starts the server, used with
            `client_root`; None uses those of the server.

    Raises:
        ConfigError: a file is missing or may not be read.
    """

    certificate: Path
    key: Path
    client_root: Path | None = None
    own_certificate: Path | None = None
    own_key: Path | None = None

    def __post_init__(self) -> None:
        if (self.own_certificate is None) != (self.own_key is None):
            raise ConfigError("own_certificate and own_key belong together. Give both files or neither.")
        check_readable(self.certificate, self.key, self.client_root, *self.own_pair)

    @property
    def own_pair(self) -> tuple[Path, Path]:
        """Client certificate and key of the process that started the server."""
        return self.own_certificate or self.certificate, self.own_key or self.key

    def check(self) -> str:
        """Check that the files match, by a handshake in memory.

        Returns:
            A name that the certificate is for.

        Raises:
            ConfigError: they are damaged, expired or do not match, or `client_root` has not signed the certificate
                that this process presents.
        """
        try:
            certificate = self._shake_hands()
        except (ssl.SSLError, OSError, ValueError) as error:
            files = ", ".join(map(str, filter(None, dict.fromkeys((*self._pair, self.client_root, *self.own_pair)))))
            raise ConfigError(f"TLS cannot be set up with {files}: {error}. Pass files that match.") from None
        names = [name for kind, name in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
        names += [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
        return str(names[0]).replace("*", "any") if names else ""

    @property
    def _pair(self) -> tuple[Path, Path]:
        return self.certificate, self.key

    def _shake_hands(self) -> Mapping[str, Any]:
        """Connect a client to a server in memory. Returns the decoded certificate of the server."""
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.load_cert_chain(*self._pair, password="")  # else it would be asked for
        client.check_hostname = False
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is trusted, whoever signed it
        client.load_verify_locations(self.certificate)
        if self.client_root is not None:
            server.verify_mode = ssl.CERT_REQUIRED
            server.load_verify_locations(self.client_root)
            client.load_cert_chain(*self.own_pair, password="")
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = (client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True))
        for _ in range(_MOST_FLIGHTS):
            for end in ends:
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        return ends[0].getpeercert() or {}
