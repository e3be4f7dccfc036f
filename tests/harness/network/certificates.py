"""Certificates for tests of TLS, made by openssl."""

import subprocess
from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def make_certificates(directory: Path) -> Path:
    """Write root.pem, and server.pem and client.pem that it signed, with their keys; other.pem is a stranger's root."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    for name in ("root", "other"):
        openssl(
            "req", "-x509", *_NEW_KEY, "-days", "1", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", "/CN=r"
        )
    for name in ("server", "client"):
        extensions = f"subjectAltName=DNS:*.example.com,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage={name}Auth\n"
        (directory / "extensions").write_text(extensions)
        openssl("req", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "root.pem", "-CAkey", "root.key", "-CAcreateserial"),
            *("-days", "1", "-extfile", "extensions", "-out", f"{name}.pem"),
        )
    return directory
