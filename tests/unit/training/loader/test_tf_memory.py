import os
import subprocess
import sys

import pytest
import tensorflow as tf

from training.loader.tf_memory import VARIABLE, limit_mb, limit_tensorflow_memory
from workflows.errors import ConfigError

GPUS = tf.config.list_physical_devices("GPU")
PROGRAM = """
import tensorflow as tf
from training.loader.tf_memory import limit_tensorflow_memory
limits = limit_tensorflow_memory()
print(list(limits.values()))
gpus = tf.config.list_physical_devices("GPU")
print([tf.config.get_logical_device_configuration(gpu)[0].memory_limit for gpu in gpus])
"""


def test_without_the_variable_nothing_is_limited() -> None:
    assert limit_tensorflow_memory({}) == {}


@pytest.mark.parametrize("text", ["", "half", "0", "-1", "8192MB", "nan", "1e400"])
def test_what_is_no_amount_is_refused_also_without_a_gpu(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"{VARIABLE} is {text!r}, expected MB such as"):
        limit_tensorflow_memory({VARIABLE: text})


@pytest.mark.parametrize(("amount", "expected_mb"), [(8192, 8192), (0.5, 500), (0.25, 250), (1, 1)])
def test_amounts_are_megabytes_or_fractions_of_what_is_free(amount: float, expected_mb: int) -> None:
    assert limit_mb(amount, free_mb=1000) == expected_mb


@pytest.mark.skipif(not GPUS, reason="no GPU here to limit TensorFlow on")
@pytest.mark.parametrize("text", ["1024", "0.25"])
def test_a_limit_that_comes_too_late_is_refused(text: str) -> None:
    program = PROGRAM.replace("limits =", "tf.constant(1.0) + 1; limits =")
    run = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, VARIABLE: text}, capture_output=True, text=True, check=False
    )
    assert f"{VARIABLE} is {text!r}, but TensorFlow has already taken its memory" in run.stderr


@pytest.mark.skipif(not GPUS, reason="no GPU here to limit TensorFlow on")
@pytest.mark.parametrize("text", ["1024", "0.25"])
def test_the_limit_is_what_tensorflow_has(text: str) -> None:
    environment = {**os.environ, VARIABLE: text}
    asked, found = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert asked == found != "[]"
    if text == "1024":
        assert set(found.strip("[]").split(", ")) == {"1024"}
