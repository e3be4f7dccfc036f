"""Keras' policy of precision, for as long as a block lasts."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def policy(name: str) -> Iterator[None]:
    """Layers that are built in the block have the policy called `name`."""
    from tf_keras import mixed_precision  # here, for conftest imports this file before some tests look

    before = mixed_precision.global_policy()
    mixed_precision.set_global_policy(name)
    try:
        yield
    finally:
        mixed_precision.set_global_policy(before)
