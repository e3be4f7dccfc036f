"""What was computed with the packages of 2023, and is compared on every stack.

`tests/golden/2023.tar.xz` holds inputs, results and what was saved. Inputs are
stored too, so that nothing hangs on how a version of NumPy draws random numbers.
"""

import json
import tarfile
from pathlib import Path
from typing import Any

from tests.harness import CPU_FLAGS

ROOT = Path(__file__).parents[3]
MADE_WITH = "made_with.json"
"""File with the versions."""
HAS_FMA = "fma" in CPU_FLAGS
NO_FMA = "NumPy rounds logarithms otherwise on a processor that cannot multiply and add at once"
"""Why floats are not compared bit by bit where there is none."""


def unpack(directory: Path, archive_name: str = "2023") -> Path:
    """Unpack an archive of golden files into `directory`, and return it."""
    with tarfile.open(ROOT / "tests" / "golden" / f"{archive_name}.tar.xz") as archive:
        archive.extractall(directory, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return directory


def read_json(path: Path) -> Any:
    """A file of JSON."""
    return json.loads(path.read_text(encoding="utf-8"))
