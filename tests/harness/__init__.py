"""What several test files share, and the programs that they run.

Builds of PyTorch with CUDA bring a compiler with an LLVM of its own, which ends a process in which TensorFlow's came
first. No verb has both, but a process that runs tests does: so it is imported before anything else.

Where ONEDNN_MAX_CPU_ISA tells oneDNN to do without the AVX-512 that the processor has, TensorFlow 2.21 asks it for
bfloat16 all the same, and ends: `tf.matmul` is enough. TensorFlow does without oneDNN then; PyTorch's obeys.

Until a process says how many threads MKL shall use, it may take fewer, one per core for instance, and round sums of
PyTorch otherwise than a process that has said the same number. Where they are compared to the bit, it takes that many.
"""

import os
from importlib.util import find_spec
from pathlib import Path

CPU_FLAGS = frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
_WITHOUT_AVX512 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2")

if "avx512f" in CPU_FLAGS and os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in _WITHOUT_AVX512:
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

os.environ["MKL_DYNAMIC"] = "FALSE"
if find_spec("triton"):
    import torch._dynamo  # noqa: F401
