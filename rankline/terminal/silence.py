"""Silences the libraries of this process."""

import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

from rankline.workflows.core.optional_packages import LoadHook

_NOTICE = re.compile(rb"I\d{4} |WARNING: All log messages before absl::InitializeLog")


_shows_all = False


def show_all(is_asked_for: bool = True) -> None:
    global _shows_all
    _shows_all = is_asked_for


def quiet_libraries() -> None:
    """Silence startup notices and deprecations that a user can do nothing about. Call this before the imports."""
    if _shows_all:
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # make `import tensorflow` load only Keras 2, which we use
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    _quiet_logger(sys.modules.get("tensorflow"))
    warnings.filterwarnings("ignore")
    _QUIET_TENSORFLOW.install()


def _quiet_logger(tensorflow: ModuleType | None) -> None:
    """Suppress everything but errors, including deprecations of tf.feature_column.

    In a notebook, TensorFlow sets the level of its logger to INFO when it first requests the logger.
    """
    if tensorflow is not None and hasattr(tensorflow, "get_logger"):  # else it is not fully imported yet
        tensorflow.get_logger()
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


def _load_tensorflow(load: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Drop the notices that TensorFlow 2.21 writes while it loads, regardless of TF_CPP_MIN_LOG_LEVEL."""
    with without_notices():
        load(module)
    _quiet_logger(module)


_QUIET_TENSORFLOW = LoadHook(("tensorflow",), _load_tensorflow)


@contextmanager
def without_notices() -> Iterator[None]:
    """Delay standard error output of the block, including output of C++ code, to drop TensorFlow's notices from it."""
    if sys.stderr is None:  # closed; descriptor 2 may be another file by now
        yield
        return
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            written.seek(0)
            os.write(2, b"".join(line for line in written if not _NOTICE.match(line)))
