"""Hide a framework from a program, run TensorFlow's graphs as they are traced, and set Keras' precision for a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def rewrite_graphs(tensorflow: Any, is_on: bool) -> None:
    """Whether TensorFlow's optimizer rewrites a graph before it runs, which may round otherwise."""
    tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": not is_on})


HIDE = {
    "tensorflow": 'import sys; sys.modules["tensorflow"] = None',
    "torch": """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoTorch())""",
}
"""Framework → what hides it. SciPy asks `sys.modules` for torch, and torch asks for the place of tensorflow: each is
hidden as the other can bear."""


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
