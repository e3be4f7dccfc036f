"""Programs in which a framework is not installed."""

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
