"""Silences log output and warnings of libraries in this process."""

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
    """Silence startup notices and deprecations that users cannot act on. Call this before importing libraries."""
    if _shows_all:
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # make `import tensorflow` load only Keras 2, which we use
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    _quiet_logger(sys.modules.get("tensorflow"))
    warnings.filterwarnings("ignore")
    _QUIET_TENSORFLOW.install()


def _quiet_logger(tensorflow: ModuleType | None) -> None:
    """Limit TensorFlow's logger to errors, which also hides deprecation warnings of tf.feature_column.

    In a notebook, TensorFlow sets the level of its logger to INFO when it first requests the logger.
    """
    if tensorflow is not None and hasattr(tensorflow, "get_logger"):  # else it is not fully imported yet
        tensorflow.get_logger()
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


def _load_tensorflow(load: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Load TensorFlow, suppressing the notices that version 2.21 prints regardless of TF_CPP_MIN_LOG_LEVEL."""
    with without_notices():
        load(module)
    _quiet_logger(module)


_QUIET_TENSORFLOW = LoadHook(("tensorflow",), _load_tensorflow)


@contextmanager
def without_notices() -> Iterator[None]:
    """Buffer standard error (including C++ output) until the `with` block ends, to drop TensorFlow's notices."""
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
