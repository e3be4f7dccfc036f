"""Limits of TensorFlow's GPU memory, set with the environment variable `TF_MEMORY_ALLOCATION`.

NVTabular's loaders introduced the variable: without a limit TensorFlow allocates all memory of a GPU at startup, which
leaves none for other processes.
"""

import os
import re
from collections.abc import Mapping

import tensorflow as tf

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.optional_packages import require

VARIABLE = "TF_MEMORY_ALLOCATION"

_given: dict[str, tuple[str, int]] = {}  # GPU → value of the variable, and the limit that was set


def limit_tensorflow_memory(environment: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Limit TensorFlow's memory on each visible GPU if the variable is set. Call it before TensorFlow uses a GPU.

    Args:
        environment: where to look up the variable: MB if at least 1, otherwise a fraction of the free memory.

    Returns:
        GPU → limit in MB; empty without GPUs or without the variable.
    """
    text = environment.get(VARIABLE)
    if text is None:
        return {}
    amount = _parse(text)
    limits = {}
    for number, gpu in enumerate(tf.config.list_physical_devices("GPU")):
        if gpu.name not in _given or _given[gpu.name][0] != text:
            free_mb = _free_mb(_nvml_index(number, environment)) if amount < 1 else 0
            limit = limit_mb(amount, free_mb)
            try:
                tf.config.set_logical_device_configuration(
                    gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=limit)]
                )
            except RuntimeError:
                raise ConfigError(
                    f"{VARIABLE} is {text!r}, but TensorFlow has already taken its memory. Make the first loader, or "
                    "call limit_tensorflow_memory, before any tensor."
                ) from None
            _given[gpu.name] = text, limit
        limits[gpu.name] = _given[gpu.name][1]
    return limits


def limit_mb(amount: float, free_mb: int) -> int:
    """Convert `amount` to MB: it is MB if at least 1, otherwise a fraction of the free memory."""
    return int(amount if amount >= 1 else amount * free_mb)


def _parse(text: str) -> float:
    if re.fullmatch(r"\d*\.?\d+", text.strip()) and float(text) > 0:
        return float(text)
    raise ConfigError(f'{VARIABLE} is {text!r}, expected MB such as "8192" or a fraction of the free memory: "0.5".')


def _nvml_index(number: int, environment: Mapping[str, str]) -> int | str:
    """Return the driver's index or UUID of TensorFlow's GPU `number`."""
    visible = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[number] if number < len(visible) else str(number)
    return int(name) if name.isdigit() else name


def _free_mb(gpu: int | str) -> int:
    require("pynvml", feature="a fraction of GPU memory", extra="gpu")
    import pynvml

    pynvml.nvmlInit()
    try:
        by_index = isinstance(gpu, int)
        handle = pynvml.nvmlDeviceGetHandleByIndex(gpu) if by_index else pynvml.nvmlDeviceGetHandleByUUID(gpu)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).free) >> 20
    finally:
        pynvml.nvmlShutdown()
