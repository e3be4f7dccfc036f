"""Requirements that a Python interpreter must meet to run Rankline.

`scripts/setup.sh` runs this file with each candidate interpreter before anything is installed, and `rankline doctor`
imports it, so it uses only the standard library and runs under any Python 3.
"""

import importlib.util
import os
import sys
import sysconfig


def lack():
    # type: () -> str
    """Return a line with the first requirement that the interpreter fails and a remedy, or an empty string."""
    found = "%d.%d" % sys.version_info[:2]  # noqa: UP031  (must run on old Pythons too)
    library = sysconfig.get_config_var("INSTSONAME") or ""
    base = sysconfig.get_config_var("LIBDIR") or ""
    directories = (base, os.path.join(base, sysconfig.get_config_var("MULTIARCH") or ""))  # noqa: PTH118
    if sys.version_info[:2] not in ((3, 10), (3, 11), (3, 12), (3, 13)):
        return "it is Python %s, expected 3.10 to 3.13" % found  # noqa: UP031
    if ".so" not in library or not any(os.path.exists(os.path.join(d, library)) for d in directories):  # noqa: PTH110, PTH118
        return (
            "it has no shared libpython, which Triton's Python backend links (apt-get install libpython%s; "  # noqa: UP031
            "pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install %s)" % (found, found)
        )
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):  # noqa: PTH110, PTH118
        return "it has no C headers, which NVTabular compiles against (apt-get install python%s-dev)" % found  # noqa: UP031
    if importlib.util.find_spec("ensurepip") is None:
        return "it cannot make virtual environments (apt-get install python%s-venv)" % found  # noqa: UP031
    return ""


if __name__ == "__main__":
    print(lack())
