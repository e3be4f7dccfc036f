import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import tensorflow as tf

from rankline.training.data.loader import tensorflow as of_tensorflow
from rankline.training.data.loader.memory import available_bytes, buffer_bytes
from rankline.training.data.loader.tensorflow import VARIABLE, limit_mb, limit_tensorflow_memory
from rankline.workflows.core.errors import ConfigError


@pytest.mark.parametrize(
    ("size", "expected"), [("512MB", 512_000_000), ("64 MiB", 64 << 20), (4096, 4096), ("4096", 4096), (1, 1)]
)
def test_sizes_are_numbers_or_text(size: float | str, expected: int) -> None:
    assert buffer_bytes(size) == expected


@pytest.mark.parametrize("share", [0.25, "0.25"])
def test_share_is_of_the_memory_that_is_available(share: float | str) -> None:
    assert buffer_bytes(share) == pytest.approx(available_bytes() / 4, rel=0.2)
    assert available_bytes() <= psutil.virtual_memory().total


def test_container_has_what_its_limit_leaves_beside_what_can_be_given_up(tmp_path: Path) -> None:
    for name, text in {"max": "1000000", "current": "900000", "stat": "anon 5\ninactive_file 600000\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert available_bytes(tmp_path) == 1_000_000 - 300_000
    (tmp_path / "memory.max").write_text("max")
    assert available_bytes(tmp_path) > 1_000_000


@pytest.mark.parametrize("size", [0, -1, "much", "", "-3MB", float("nan"), float("inf"), "nan"])
def test_buffer_size_that_is_no_size_is_refused(size: float | str) -> None:
    with pytest.raises(ConfigError, match="buffer_size"):
        buffer_bytes(size)


GPUS = tf.config.list_physical_devices("GPU")
PROGRAM = """
import tensorflow as tf
from rankline.training.data.loader.tensorflow import limit_tensorflow_memory
limits = limit_tensorflow_memory()
print(list(limits.values()))
gpus = tf.config.list_physical_devices("GPU")
print([tf.config.get_logical_device_configuration(gpu)[0].memory_limit for gpu in gpus])
"""


def test_tensorflow_has_no_limit_without_the_variable() -> None:
    assert limit_tensorflow_memory({}) == {}


@pytest.mark.parametrize("text", ["", "half", "0", "-1", "8192MB", "nan", "1e400"])
def test_tensorflow_limit_that_is_no_amount_is_refused_also_without_a_gpu(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"{VARIABLE} is {text!r}, expected a size in MB such as"):
        limit_tensorflow_memory({VARIABLE: text})


@pytest.mark.parametrize(("amount", "expected_mb"), [(8192, 8192), (0.5, 500), (0.25, 250), (1, 1)])
def test_amounts_are_megabytes_or_fractions_of_what_is_free(amount: float, expected_mb: int) -> None:
    assert limit_mb(amount, free_mb=1000) == expected_mb


@pytest.mark.skipif(not GPUS, reason="no GPU here to limit TensorFlow on")
@pytest.mark.parametrize("text", ["1024", "0.25"])
def test_limit_that_comes_too_late_is_refused(text: str) -> None:
    program = PROGRAM.replace("limits =", "tf.constant(1.0) + 1; limits =")
    run = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, VARIABLE: text}, capture_output=True, text=True, check=False
    )
    assert f"{VARIABLE} is {text!r}, but TensorFlow has already allocated its memory" in run.stderr


@pytest.mark.skipif(not GPUS, reason="no GPU here to limit TensorFlow on")
@pytest.mark.parametrize("text", ["1024", "0.25"])
def test_limit_is_what_tensorflow_has(text: str) -> None:
    environment = {**os.environ, VARIABLE: text}
    asked, found = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert asked == found != "[]"
    if text == "1024":
        assert set(found.strip("[]").split(", ")) == {"1024"}


@pytest.mark.parametrize("text", ["1024", "0.25"])
def test_limit_stands_for_later_loaders_and_another_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    gpu = SimpleNamespace(name="/physical_device:GPU:9")
    set_already: list[Any] = []

    def configure(_: Any, devices: Any) -> None:
        if set_already:
            raise RuntimeError("Virtual devices cannot be modified after being initialized")
        set_already.extend(devices)

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [gpu])
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", configure)
    monkeypatch.setattr(of_tensorflow, "_free_mb", lambda gpu: 4096)
    monkeypatch.setattr(of_tensorflow, "_given", {})
    first = limit_tensorflow_memory({VARIABLE: text})
    monkeypatch.setattr(of_tensorflow, "_free_mb", lambda gpu: 100)
    assert limit_tensorflow_memory({VARIABLE: text}) == first == {gpu.name: 1024}
    with pytest.raises(ConfigError, match="TensorFlow has already allocated its memory"):
        limit_tensorflow_memory({VARIABLE: "0.5"})
    monkeypatch.setattr(of_tensorflow, "_given", {})  # TensorFlow was started by somebody else
    with pytest.raises(ConfigError, match="TensorFlow has already allocated its memory"):
        limit_tensorflow_memory({VARIABLE: text})
