"""C++ programs of the tests, compiled with sanitizers from the sources of the native backends, once for each state."""

import hashlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import serving.native

SOURCES = Path(serving.native.__file__).parent
_FLAGS = (
    *("-std=c++17", "-O0", "-ffp-contract=off", f"-I{SOURCES}"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)
_OF_THE_PLAN = ("json.cc", "mapped_file.cc", "tensor.cc", "plan/[!c]*.cc", "plan/column.cc")  # all but c_api.cc


def sanitized(program: Path) -> Path:
    """A program beside the sources of the plan; compiling it takes some 20 seconds of processor time."""
    sources = [program, *(path for pattern in _OF_THE_PLAN for path in sorted(SOURCES.glob(pattern)))]
    texts = [path.read_text(encoding="utf-8") for path in (*sources, *sorted(SOURCES.rglob("*.h")))]
    digest = hashlib.sha256("\0".join([*_FLAGS, *texts]).encode()).hexdigest()[:16]
    target = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankline" / "native" / f"test-{digest}"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent) as directory, ThreadPoolExecutor(2) as pool:

            def compiled(numbered: tuple[int, Path]) -> str:
                made = f"{directory}/{numbered[0]}.o"
                subprocess.run(["g++", *_FLAGS, "-c", numbered[1], "-o", made], check=True)
                return made

            objects = list(pool.map(compiled, enumerate(sources)))
            subprocess.run(["g++", *_FLAGS, *objects, "-o", f"{directory}/program"], check=True)
            Path(directory, "program").rename(target)
    return target
