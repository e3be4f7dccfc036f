"""C++ programs of the tests, compiled with sanitizers from the sources of the native backends, once for each state."""

import hashlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDERS = [Path(__file__).parents[2] / part / "native" for part in ("workflows", "serving")]
_FLAGS = ("-std=c++17", "-O0", "-g1", "-pthread", "-ffp-contract=off", "-fno-sanitize-recover=all")
MEMORY, THREADS = "address,undefined", "thread"


def sanitized(program: Path, *folders: str, by: str = MEMORY) -> Path:
    """Compile a program with the sources at the top and in `folders`; those of the plan take 20 seconds of CPU time."""
    patterns = ("*.cc", *(f"{folder}/**/*.cc" for folder in folders))
    sources = [program, *(path for root in FOLDERS for one in patterns for path in sorted(root.glob(one)))]
    flags = (*_FLAGS, f"-fsanitize={by}")
    headers = (*(path for root in FOLDERS for path in sorted(root.rglob("*.h"))), *sorted(program.parent.glob("*.h")))
    texts = [path.read_text(encoding="utf-8") for path in (*sources, *headers)]
    digest = hashlib.sha256("\0".join([*flags, *texts]).encode()).hexdigest()[:16]
    target = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankline" / "native" / f"test-{digest}"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent) as directory, ThreadPoolExecutor(2) as pool:

            def compiled(numbered: tuple[int, Path]) -> str:
                made = f"{directory}/{numbered[0]}.o"
                subprocess.run(
                    ["g++", *flags, *(f"-I{root}" for root in FOLDERS), "-c", numbered[1], "-o", made], check=True
                )
                return made

            objects = list(pool.map(compiled, enumerate(sources)))
            subprocess.run(["g++", *flags, *objects, "-o", f"{directory}/program"], check=True)
            Path(directory, "program").rename(target)
    return target
