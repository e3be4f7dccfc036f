"""Compile the native backends within seconds, using only g++, and cache them outside the checkout.

    python -m rankline.workflows.native.build [DIRECTORY]

The sources are in all folders named `native` in the package. Each `backends/NAME.cc` becomes `libtriton_NAME.so`, which
Triton loads for models with `backend: "NAME"`, and `plan/c_api.cc` becomes a library of the plan alone. Each is linked
with all sources of the other folders; the linker drops unused code. Triton's functions stay undefined, because the
server that loads the object provides them: neither Triton's headers nor its libraries are needed.

This module imports nothing else of Rankline, so that `setup.py` can load it directly.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]
_FOLDERS = sorted(_PACKAGE.glob("*/native"))
_OF_BACKENDS = {path: f"libtriton_{path.stem}.so" for path in _PACKAGE.glob("*/native/backends/*.cc")}
PLAN_LIBRARY = "librankline_plan.so"
"""Library of the plan alone, with a C interface; see `rankline.workflows.plan.native_library`."""

_MAINS = {**_OF_BACKENDS, Path(__file__).parent / "plan" / "c_api.cc": PLAN_LIBRARY}
"""Source with an object's entry points → name of the object."""

_TRITON = "triton"  # folder of the code that calls Triton
_COMPILE = (
    *("-std=c++17", "-O2", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-ffunction-sections"),
    *("-fdata-sections", "-Wall", "-Wextra", "-Wconversion", "-pthread"),
)
# Link the C++ runtime statically: the machine that loads the object may have an older one.
_LINK = (
    *("-shared", "-pthread", "-ldl", "-Wl,--gc-sections", "-Wl,-s", "-static-libstdc++", "-static-libgcc"),
    "-Wl,--exclude-libs,ALL",
)
_SHIPPED = Path(__file__).parent / "objects"
_GLIBC = re.compile(rb"GLIBC_2\.(\d+)")
_STRICT = "-Werror"  # for developers only: new warnings of newer compilers must not stop users
_MAX_LINES = 20


class BuildError(Exception):
    """An error raised if g++ is missing or cannot compile the sources."""


def object_name(backend: str) -> str:
    return f"libtriton_{backend}.so"


def built_objects(*, strict: bool = False, when_absent: Callable[[], None] = lambda: None) -> Path:
    """Return the directory of compiled objects for the current sources, flags and compiler, building them if needed.

    Raises:
        BuildError: g++ is missing or cannot compile the sources, or the objects cannot be written.
    """
    compiler = find_compiler()
    if compiler is None:
        raise BuildError("g++ was not found")
    target = _cached(compiler)
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            target.with_suffix(".lock").open("w") as lock,
            tempfile.TemporaryDirectory(prefix="building-", dir=target.parent) as directory,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes, only one compiles
            if not target.is_dir():
                when_absent()
                made = Path(directory, "objects")
                build(made, compiler, strict=strict)
                made.rename(target)
    except OSError as error:
        raise BuildError(f"{target} is not writable ({os.strerror(error.errno or 0)})") from None
    return target


def find_objects() -> Path | None:
    compiler = find_compiler()
    return target if compiler and (target := _cached(compiler)).is_dir() else None


def _cached(compiler: str) -> Path:
    return cache_directory() / "native" / _digest(compiler)


def build(target: Path, compiler: str, *, strict: bool = False) -> None:
    """Compile all objects into `target`, which must not exist. If `strict` is set, warnings are errors.

    Raises:
        BuildError: g++ cannot compile the sources.
    """
    target.mkdir()
    num_cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="rankline-native-") as directory, ThreadPoolExecutor(num_cores) as pool:
        flags = (*_COMPILE, *([_STRICT] if strict else []), *(f"-I{folder}" for folder in _FOLDERS))

        def compiled(source: Path) -> str:
            made = Path(directory, source.relative_to(_PACKAGE).as_posix().replace("/", "_") + ".o")
            _run(compiler, *flags, "-c", str(source), "-o", str(made))
            return str(made)

        def linked(main: Path) -> None:
            # The plan library is loaded outside of a server, so Triton's functions are not available to it.
            parts = [part for path, part in shared if main in _OF_BACKENDS or path.parent.name != _TRITON]
            _run(compiler, own[main], *parts, "-o", str(target / _MAINS[main]), *_LINK)

        sources = _sources("*.cc")
        parts = dict(zip(sources, pool.map(compiled, sources), strict=True))
        own = {main: parts.pop(main) for main in _MAINS if main in parts}
        shared = list(parts.items())
        list(pool.map(linked, own))


def find_compiler() -> str | None:
    return shutil.which("g++")


def _sources(pattern: str) -> list[Path]:
    return sorted(path for folder in _FOLDERS for path in folder.rglob(pattern))


def cache_directory() -> Path:
    """Return the user's cache directory for compiled code, which is shared between checkouts."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankline"


def _digest(compiler: str) -> str:
    made_of = [_run(compiler, "--version"), _run(compiler, "-dumpmachine"), *_COMPILE, *_LINK]
    for path in [Path(__file__), *_sources("*.cc"), *_sources("*.h")]:
        made_of += [path.relative_to(_PACKAGE).as_posix(), path.read_text(encoding="utf-8")]
    return hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise BuildError("g++ failed to compile the native backends: " + "\n".join(lines[:_MAX_LINES]))
    return done.stdout


def shipped_objects() -> Path | None:
    """Return the directory of prebuilt objects in this package, or None if this machine cannot load them.

    Only an installed wheel that was built on a machine with g++ contains objects, never a checkout.
    """
    files = list(_SHIPPED.glob("*.so"))
    asked = [int(minor) for file in files for minor in _GLIBC.findall(file.read_bytes())]
    here = (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(".")[2]  # such as "glibc 2.36"
    return _SHIPPED if files and here.isdecimal() and max(asked, default=0) <= int(here) else None


def find_plan_library() -> Path | None:
    """Return the path of the plan library, whether shipped or previously compiled, or None if it does not exist yet."""
    try:
        directory = shipped_objects() or find_objects()
    except BuildError:  # g++ exists but does not run
        return None
    return path if directory and (path := directory / PLAN_LIBRARY).is_file() else None


def main(arguments: Sequence[str]) -> int:
    """Build the objects into a given directory or the cache. Return the exit status, which is 1 on failure."""
    try:
        if arguments:
            compiler = find_compiler()
            if compiler is None:
                raise BuildError("g++ was not found")
            build(Path(arguments[0]), compiler, strict=True)
        else:
            built_objects(strict=True)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
