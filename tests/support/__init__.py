"""What several test files share, and the programs that they run.

Builds of PyTorch with CUDA bring a compiler with an LLVM of its own, which ends a process in which TensorFlow's came
first. No verb has both, but a process that runs tests does: so it is imported before anything else.
"""

from importlib.util import find_spec

if find_spec("triton"):
    import torch._dynamo  # noqa: F401
