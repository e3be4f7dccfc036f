"""Check whether Horovod works in this environment, and suggest a remedy if not.

`scripts/horovod.sh` runs this file before building and after installing; `rankline doctor` imports it.
"""

import ctypes
import importlib.util
import json
import os
import signal
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rankline.workflows.core.errors import install_line

_TRIAL = """
import sys
try:
    import horovod.tensorflow as hvd
    hvd.init()
except Exception as error:
    sys.exit((str(error) or type(error).__name__).splitlines()[0])
print(hvd.size(), *(name for name in ("gloo", "mpi") if getattr(hvd, f"{name}_built")()))
"""
_TRIAL_TIMEOUT_S = 120
_TENSORFLOW_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")  # Horovod's library links to these
_LAUNCHERS = ("HOROVOD_", "OMPI_", "PMI_", "PMIX_")  # variables that would make the trial a worker of a larger world


def problem(*, mpi: bool = False) -> str | None:
    remedy = "make horovod MPI=1" if mpi else "make horovod"
    if not (Path(__file__).parents[2] / "Makefile").exists():  # installed from a wheel
        remedy += " in a checkout of Rankline"
    horovod = _directory_of("horovod")
    if horovod is None:
        return f"Horovod is not installed: {remedy}"
    installed = tensorflow_version()
    if installed is None:
        return f"TensorFlow is not installed: {install_line('cpu')}"
    built_for = _built_for(horovod)
    if built_for != installed:
        return f"Horovod was built for TensorFlow {built_for or '(none)'}, not {installed}: {remedy}"
    try:
        trial = subprocess.run(
            [sys.executable, "-c", _TRIAL],
            env=_lone_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TRIAL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"Horovod did not start with one worker within {_TRIAL_TIMEOUT_S} s: {remedy}"
    if trial.returncode != 0:
        return f"Horovod does not start ({_last_words(trial)}): {remedy}"
    _, *built = trial.stdout.split()
    lacking = [name for name in ("gloo", "mpi") if name not in built and (name == "gloo" or mpi)]
    return f"Horovod was built without {' and '.join(lacking)}: {remedy}" if lacking else None


def built_with() -> set[str]:
    """Return the backends that Horovod was built with, or an empty set if its library cannot be loaded.

    Querying the library directly takes 0.2 s; importing the module would import TensorFlow.
    """
    horovod, tensorflow = (_directory_of(package) for package in ("horovod", "tensorflow"))
    if horovod is None or tensorflow is None:
        return set()
    try:
        for name in _TENSORFLOW_LIBRARIES:
            ctypes.CDLL(str(tensorflow / name), mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(horovod / "tensorflow" / f"mpi_lib{sysconfig.get_config_var('EXT_SUFFIX')}"))
        return {name for name in ("gloo", "mpi") if getattr(library, f"horovod_{name}_built")()}
    except (OSError, AttributeError):  # built for another TensorFlow, or without any
        return set()


def tensorflow_version() -> str | None:
    for name in ("tensorflow-cpu", "tensorflow"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _directory_of(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _built_for(package: Path) -> str | None:
    """Return the TensorFlow version that Horovod's build recorded, or None if pip built it without TensorFlow."""
    try:
        noted: str | None = json.loads((package / "metadata.json").read_text(encoding="utf-8")).get("tensorflow")
    except FileNotFoundError:
        return None
    return noted


def _lone_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    # Force Gloo for both: an MPI build would need mpirun. The trial needs no GPU.
    gloo = dict.fromkeys(("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"), "gloo")
    return {**kept, **gloo, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}


def _last_words(trial: "subprocess.CompletedProcess[str]") -> str:
    if trial.returncode < 0:
        return f"killed by {signal.Signals(-trial.returncode).name}"  # SIGILL: the CPU lacks AVX, FMA or F16C
    return (trial.stderr.strip().splitlines() or [f"exit code {trial.returncode}"])[-1]


if __name__ == "__main__":
    if found := problem(mpi="mpi" in sys.argv[1:]):
        sys.exit(found)
