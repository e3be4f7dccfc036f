"""Variables of embedding tables."""

import re
from typing import Any

import tensorflow as tf


def add_table(layer: Any, name: str, shape: tuple[int, int], initializer: Any, *, trainable: bool = True) -> Any:
    # TensorFlow restricts names of saved variables; column names may have any characters.
    safe = re.sub(r"[^A-Za-z0-9_.\\/>-]", lambda found: f"_{ord(found[0]):x}", name)
    # Keras would cast only in `call`, and `lookup` is used without it.
    return layer.add_weight(
        name=safe,
        shape=shape,
        dtype=tf.float32,
        initializer=initializer,
        trainable=trainable,
        experimental_autocast=False,
    )
