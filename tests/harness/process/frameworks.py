"""Programs in which a framework is not installed, or in which TensorFlow runs graphs as they are traced."""

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
