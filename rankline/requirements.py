"""The exact requirements of an extra, which were tried together, as pip's `--no-deps` takes them.

`pip install rankline` alone cannot work: NVTabular 23.8 declares upper bounds, those of 2023, and pip cannot lift them.
So what is needed is worked out from the lock, `constraints.txt`, which names for each package what asks for it. This
runs before anything else is installed, and needs nothing but the standard library.
"""

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from rankline import interpreter

_LOCK = Path(__file__).with_name("constraints.txt")
_ALWAYS = ""  # the extra of what all need
_UNLOCKED = "gpu"  # its TensorFlow has the same files as that of cpu, so that a lock has one of them
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra == ['"]([^'"]+)""")


def requirements(extras: Iterable[str], declared: Sequence[str], lock: str) -> list[str]:
    """All packages that Rankline and some of its extras need, pinned, as lines for pip with markers.

    Args:
        declared: the requirements in Rankline's metadata.
        lock: text of the lock, whose comments say which package requires which.

    Raises:
        ValueError: an extra does not exist, or is not in the lock.
    """
    by_extra = _by_extra(declared)
    wanted = set(extras)
    if unknown := sorted(wanted - by_extra.keys()):
        names = ", ".join(sorted(by_extra.keys() - {_ALWAYS}))
        raise ValueError(f"there is no extra {unknown[0]!r}, expected some of {names}")
    if _UNLOCKED in wanted:
        others = shlex.join(by_extra[_UNLOCKED])
        raise ValueError(f"the lock is without {_UNLOCKED!r}: leave it out, then pip install -c {_LOCK} {others}")
    lines = [line for line in lock.splitlines() if line and not line.startswith("#")]
    roots = {_normal(requirement) for extra in {_ALWAYS, *wanted} for requirement in by_extra[extra]}
    needed = _closure(roots, _asked_by(lines))
    return [line.partition("#")[0].rstrip() for line in lines if _normal(line) in needed]


def _by_extra(declared: Iterable[str]) -> Mapping[str, list[str]]:
    """Requirements without their markers."""
    found: dict[str, list[str]] = {}
    for line in declared:
        requirement, _, marker = line.partition(";")
        extra = _EXTRA.search(marker)
        found.setdefault(extra[1] if extra else _ALWAYS, []).append(requirement.strip())
    return found


def _asked_by(lines: Iterable[str]) -> Mapping[str, set[str]]:
    asked: dict[str, set[str]] = {}
    for line in lines:
        for parent in line.partition("# via ")[2].split(","):
            if parent.strip():
                asked.setdefault(_normal(parent), set()).add(_normal(line))
    return asked


def _closure(roots: set[str], asked_by: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += asked_by.get(name, ())
    return found


def _normal(requirement: str) -> str:
    """The normalised name of a requirement."""
    name = _NAME.search(requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def main() -> None:
    try:
        declared = requires("rankline") or []
    except PackageNotFoundError:
        sys.exit("requirements: Rankline itself is not installed: pip install --no-deps WHEEL")
    if lack := interpreter.lack():
        sys.exit(f"requirements: {sys.executable} will not do: {lack}")
    try:
        found = requirements(filter(None, ",".join(sys.argv[1:]).split(",")), declared, _LOCK.read_text("utf-8"))
    except ValueError as error:
        sys.exit(f"requirements: {error}")
    print(*found, sep="\n")


if __name__ == "__main__":
    main()
