"""Where the compiled C++ is on this machine."""

import os
import re
from pathlib import Path

from rankline.workflows.native.build import PLAN_LIBRARY, BuildError, find_objects

_SHIPPED = Path(__file__).parent / "objects"
_GLIBC = re.compile(rb"GLIBC_2\.(\d+)")


def shipped_objects() -> Path | None:
    """The objects in this package, if this machine can load them.

    Only an installed wheel that was built where g++ was has some, never a checkout.
    """
    files = list(_SHIPPED.glob("*.so"))
    asked = [int(minor) for file in files for minor in _GLIBC.findall(file.read_bytes())]
    here = (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(".")[2]  # such as "glibc 2.36"
    return _SHIPPED if files and here.isdecimal() and max(asked, default=0) <= int(here) else None


def find_plan_library() -> Path | None:
    """The plan's C functions in this package, or compiled earlier; None where there are none yet."""
    try:
        directory = shipped_objects() or find_objects()
    except BuildError:  # g++ is there and does not run
        return None
    return path if directory and (path := directory / PLAN_LIBRARY).is_file() else None
