"""Print a CycloneDX JSON bill of materials for a serving image, listing the SHA-256 of every file by package.

    sbom.py DIRECTORY=PLACE …     PLACE is the location of the directory's files in the image

The script runs where the image is built, and queries Debian's package manager. The same files produce the same text.
"""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from urllib.parse import quote

_REQUIREMENTS = Path("/requirements-engines.txt")
_FROM_PYPI = {"libonnxruntime": "onnxruntime", "libtensorflow_": "tensorflow-cpu"}
_SYSTEM = platform.freedesktop_os_release()["ID"]
_COPIED = {"/opt/rankline/bin/busybox": "/usr/bin/busybox"}


def bill_of(places: dict[Path, Path]) -> dict[str, object]:
    """Return the CycloneDX document for directories that are copied into the image.

    Args:
        places: directories copied into the image → their location in the image.
    """
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", _REQUIREMENTS.read_text(), re.MULTILINE))
    owners, versions = _debian()
    made: dict[tuple[str, ...], list[dict[str, object]]] = defaultdict(list)
    for directory, place in places.items():
        for path in sorted(directory.rglob("*")):
            if path.is_file() and not path.is_symlink():
                name = str(place / path.relative_to(directory))
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                hashes = [{"alg": "SHA-256", "content": digest}]
                made[_origin(name, owners, versions, pinned)].append({"type": "file", "name": name, "hashes": hashes})
    components = [_component(*origin, files=files) for origin, files in sorted(made.items())]
    image = {"type": "container", "name": "rankline-triton"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": image},
        "components": components,
    }


def _debian() -> tuple[dict[str, str], dict[str, str]]:
    """Return the Debian package of each installed file, and the version of each package."""
    shown = _said("dpkg-query", "--show", "--showformat", "${binary:Package} ${Version}\n")
    versions = dict(line.split(" ") for line in shown)
    return {path: package for package in versions for path in _said("dpkg", "--listfiles", package)}, versions


def _said(*command: str) -> list[str]:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def _origin(name: str, owners: dict[str, str], versions: dict[str, str], pinned: dict[str, str]) -> tuple[str, ...]:
    """Return (kind, package, version) of the package that a file belongs to."""
    original = _COPIED.get(name, name)
    for path in (original, f"/usr{original}", original.removeprefix("/usr")):
        if path in owners:
            package = owners[path]
            return f"deb/{_SYSTEM}", package.partition(":")[0], versions[package]
    library = next((package for begin, package in _FROM_PYPI.items() if Path(name).name.startswith(begin)), None)
    if library is not None:
        return "pypi", library, pinned[library]
    if name.startswith("/opt/rankline"):
        return "", "rankline", ""
    if name.startswith("/opt/tritonserver"):
        return "", "tritonserver", os.environ.get("TRITON_SERVER_VERSION", "")
    return "", "image", ""


def _component(kind: str, package: str, version: str, *, files: list[dict[str, object]]) -> dict[str, object]:
    purl = f"pkg:{kind}/{package}@{quote(version, safe='~')}"
    known = {"version": version} if version else {}
    return {"type": "library", "name": package, **known, **({"purl": purl} if kind else {}), "components": files}


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    places = {Path(directory): Path(place) for directory, place in given.items()}
    print(json.dumps(bill_of(places), indent=1, sort_keys=True))
