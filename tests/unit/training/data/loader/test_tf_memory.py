import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from rankline.training.data.loader import tf_memory
from rankline.training.data.loader.tf_memory import VARIABLE, limit_mb, limit_tensorflow_memory
from rankline.workflows.core.errors import ConfigError

GPUS = tf.config.list_physical_devices("GPU")
PROGRAM = """
import tensorflow as tf
from rankline.training.data.loader.tf_memory import limit_tensorflow_memory
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


@pytest.mark.parametrize("text", ["1024", "0.25"])
def test_a_limit_stands_for_later_loaders_and_another_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    gpu = SimpleNamespace(name="/physical_device:GPU:9")
    set_already: list[Any] = []

    def configure(_: Any, devices: Any) -> None:
        if set_already:
            raise RuntimeError("Virtual devices cannot be modified after being initialized")
        set_already.extend(devices)

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [gpu])
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", configure)
    monkeypatch.setattr(tf_memory, "_free_mb", lambda gpu: 4096)
    monkeypatch.setattr(tf_memory, "_given", {})
    first = limit_tensorflow_memory({VARIABLE: text})
    monkeypatch.setattr(tf_memory, "_free_mb", lambda gpu: 100)
    assert limit_tensorflow_memory({VARIABLE: text}) == first == {gpu.name: 1024}
    with pytest.raises(ConfigError, match="TensorFlow has already taken its memory"):
        limit_tensorflow_memory({VARIABLE: "0.5"})
    monkeypatch.setattr(tf_memory, "_given", {})  # TensorFlow was started by somebody else
    with pytest.raises(ConfigError, match="TensorFlow has already taken its memory"):
        limit_tensorflow_memory({VARIABLE: text})
