"""Open an ONNX model from stdin and score one row, within limits.

`rankline.serving.importers.onnx_file` runs this file as a script. Constants and loops in a small file can use any
amount of memory and time, even during constant folding, and only ending the process stops them. The script exits with 1
and prints the error if the model cannot be opened, and with 2 if memory runs out.
"""

import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

_TYPES = {"float": "float32", "double": "float64"}


def main(max_bytes: int, max_cpu_s: int) -> int:
    content = sys.stdin.buffer.read()
    _limit(max_bytes, max_cpu_s)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # each thread has its own stack
    session = None
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        session.run(None, {tensor.name: _zeros(tensor) for tensor in session.get_inputs()})
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        if isinstance(error, MemoryError) or "alloc" in str(error).lower():
            return 2
        if session is None:  # otherwise the model does not accept zeros
            print(error)
            return 1
    return 0


def _limit(max_bytes: int, max_cpu_s: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    usage = resource.getrusage(resource.RUSAGE_SELF)
    address_space = pages * resource.getpagesize() + max_bytes
    cpu_s = int(usage.ru_utime + usage.ru_stime) + max_cpu_s
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))


def _zeros(tensor: Any) -> Any:
    name = tensor.type.removeprefix("tensor(").removesuffix(")")
    shape = [size if isinstance(size, int) else 1 for size in tensor.shape]
    return np.zeros(shape, _TYPES.get(name, name)) if name != "string" else np.full(shape, "", object)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
