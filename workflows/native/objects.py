import os
import re
from pathlib import Path

from rankline.workflows.native.build import PLAN_LIBRARY, BuildError, find_objects

_SHIPPED = Path(__file__).parent / "objects"
_GLIBC = re.compile(rb"GLIBC_2\.(\d+)")


def shipped_objects() -> Path | None:
    """Return the directory of objects in this package, if this machine can load them.

    Only an installed wheel that was built on a machine with g++ contains objects, never a checkout.
    """
    files = list(_SHIPPED.glob("*.so"))
    asked = [int(minor) for file in files for minor in _GLIBC.findall(file.read_bytes())]
    here = (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(".")[2]  # such as "glibc 2.36"
    return _SHIPPED if files and here.isdecimal() and max(asked, default=0) <= int(here) else None


def find_plan_library() -> Path | None:
    """Return the plan library in this package, or one compiled earlier; None if there is none yet."""
    try:
        directory = shipped_objects() or find_objects()
    except BuildError:  # g++ exists but does not run
        return None
    return path if directory and (path := directory / PLAN_LIBRARY).is_file() else None
