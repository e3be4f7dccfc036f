import os
import subprocess
import sys
import warnings
from contextlib import ExitStack

import pytest

from rankline.workflows.nvt.compat import quiet_nvtabular


@pytest.mark.parametrize("leaves_first", [0, 1])
def test_quiet_blocks_may_end_in_any_order(leaves_first: int) -> None:
    """As threads do, which share the filters."""
    before = list(warnings.filters)
    blocks = ExitStack(), ExitStack()
    for block in blocks:
        block.enter_context(quiet_nvtabular())
    blocks[leaves_first].close()
    warnings.warn("Initializing an NVTabular Dataset in CPU mode.", UserWarning, stacklevel=1)  # would be an error
    blocks[1 - leaves_first].close()
    assert list(warnings.filters) == before


def test_lists_stay_lists_if_nvtabular_is_imported_first() -> None:
    code = "import nvtabular, rankline, dask; print(dask.config.get('dataframe.convert-string'))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# What Merlin finds where there is one.
_WITH_GPU = """
import sys, types
sys.modules["merlin.core.has_gpu"] = types.SimpleNamespace(HAS_GPU=True)
"""
_IMPORTS = """
import os
from google.protobuf.internal import api_implementation

def protobuf():
    print(api_implementation.Type(), os.environ.get("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"))

import rankline.workflows.nvt.compat
print(*sorted({"tensorflow", "torch", "tritonclient"} & set(sys.modules)))
protobuf()
from rankline.serving.engines.merlin_operators import merlin_operator
print(*sorted({"tensorflow", "torch", "xgboost"} & set(sys.modules)))
protobuf()
merlin_operator("tensorflow", "PredictTensorflow"), merlin_operator("pytorch", "PredictPyTorch")
import tensorflow
from merlin.dtypes import dtype
print(dtype(tensorflow.int32).name, dtype("int32").to("tensorflow").name)
import numpy, torch
from merlin.table import NumpyColumn, TensorflowColumn, TorchColumn
from merlin.table.conversions import convert_col
for column in (TensorflowColumn, TorchColumn):
    print(convert_col(NumpyColumn(numpy.array([3, 4])), column).values.numpy())
from merlin.systems.dag import ensemble
print(*(op.__name__ for op in ensemble.TritonExecutorRuntime().op_table))
protobuf()
print(dtype(tensorflow.int32).name, dtype("int32").to("triton"))
"""


@pytest.mark.slow
def test_merlin_imports_a_framework_where_it_is_asked_for_one_and_protobuf_stays_as_fast_as_it_is() -> None:
    """In this process and in those that it starts."""
    environment = {name: value for name, value in os.environ.items() if "PROTOCOL_BUFFERS" not in name}
    command = [sys.executable, "-Wignore", "-c", _WITH_GPU + _IMPORTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        *("", "upb None", "", "upb None", "int32 int32", "[3 4]", "[3 4]"),
        *("TransformWorkflow PredictForest PredictTensorflow PredictPyTorch", "upb None", "int32 8"),
    ]


_NOTEBOOK = """
import nvtabular
from merlin.core.compat import tensorflow as taken
print(taken.tensorflow)
from rankline.serving.engines.merlin_operators import merlin_operator
merlin_operator("tensorflow", "PredictTensorflow")
import tensorflow
from merlin.table import NumpyColumn, TensorflowColumn
from merlin.table.conversions import convert_col
print(taken.tensorflow.__name__, convert_col(NumpyColumn(tensorflow.range(2).numpy()), TensorflowColumn).values.numpy())
"""


@pytest.mark.slow
def test_merlin_finds_tensorflow_beside_a_gpu_after_a_notebook_imported_nvtabular() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # TensorFlow does not use it
    command = [sys.executable, "-Wignore", "-c", _WITH_GPU + _NOTEBOOK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["None", "tensorflow [0 1]"]
