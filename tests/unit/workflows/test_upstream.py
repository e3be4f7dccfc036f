import os
import subprocess
import sys
import warnings
from contextlib import ExitStack

import pytest

from workflows.upstream import quiet_nvtabular

STATE = """
import os
from google.protobuf.internal import api_implementation
print(api_implementation.Type(), os.environ.get("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"))
"""


@pytest.mark.parametrize("module", ["workflows.upstream", "serving.merlin"])
def test_merlin_leaves_protobuf_as_fast_as_it_is_here_and_in_the_processes_that_this_one_starts(module: str) -> None:
    environment = {name: value for name, value in os.environ.items() if "PROTOCOL_BUFFERS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}\n{STATE}"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["upb", "None"]


@pytest.mark.parametrize("leaves_first", [0, 1])
def test_who_leaves_first_keeps_it_quiet_for_who_is_still_inside(leaves_first: int) -> None:
    """As threads do, which share the filters."""
    before = list(warnings.filters)
    blocks = ExitStack(), ExitStack()
    for block in blocks:
        block.enter_context(quiet_nvtabular())
    blocks[leaves_first].close()
    warnings.warn("Initializing an NVTabular Dataset in CPU mode.", UserWarning, stacklevel=1)  # would be an error
    blocks[1 - leaves_first].close()
    assert list(warnings.filters) == before


_FRAMEWORKS = """
import sys
import workflows.upstream
print(*sorted({"tensorflow", "torch", "tritonclient"} & set(sys.modules)))
import serving.merlin, tensorflow
from merlin.dtypes import dtype
print(dtype(tensorflow.int32).name, dtype("int32").to("tensorflow").name)
import numpy, torch
from merlin.table import NumpyColumn, TensorflowColumn, TorchColumn
from merlin.table.conversions import convert_col
for column in (TensorflowColumn, TorchColumn):
    print(convert_col(NumpyColumn(numpy.array([3, 4])), column).values.numpy())
"""


def test_nvtabular_is_imported_without_frameworks_which_serving_brings_back() -> None:
    done = subprocess.run([sys.executable, "-Wignore", "-c", _FRAMEWORKS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "int32 int32", "[3 4]", "[3 4]"]
