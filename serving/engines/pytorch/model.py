"""Triton backend `pytorch`: runs a TorchScript model.

The folder is a Python-based backend: Triton runs this `model.py` for every model whose config says
`backend: "pytorch"`, and the version directory holds only `model.pt`. It needs NumPy and PyTorch. The same directory
and config run under Triton's own PyTorch backend, unless a column name is not a valid argument name: inputs are named
as the arguments of `forward`, and output names end in `__0`, `__1` and so on, their position in the returned tuple.

Parameter in `config.pbtxt`, named as in Triton's own backend:

    INTRA_OP_THREAD_COUNT   number of threads that one operation may use; default 0: the number of cores

The model runs as it was saved: freezing or optimizing it for inference does not change the latency, 0.06 ms for one row
of the MovieLens model. Idle OpenMP threads sleep: spinning, their default, takes cores from tritonserver and its
clients (with 2 cores used by others and 1,024 rows: p50 68 ms spinning, 8 ms sleeping; no difference for one row).
"""

import os
from pathlib import Path

import triton_python_backend_utils as pb_utils

from rankline.serving.python_backends.batching import BatchingModel
from rankline.serving.python_backends.model_arguments import Array, Run, ServedModel, whole_number
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.torchscript.program import input_names, load_torch_script


class TritonPythonModel(BatchingModel):
    FRAMEWORK = "PyTorch"

    def load(self, model: ServedModel) -> Run:
        path = model.version / "model.pt"
        if not path.is_file():
            raise pb_utils.TritonModelException(f"{path} does not exist. Export the model again.")
        intra_op_threads = whole_number(model.parameters, "INTRA_OP_THREAD_COUNT", 0)
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when OpenMP is loaded
        import torch

        if intra_op_threads:
            torch.set_num_threads(intra_op_threads)
        try:
            script, _ = load_torch_script(path, torch, remedy="Export the model again.")
        except ArtifactError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        arguments = input_names(script)
        names = [tensor.name for tensor in model.inputs]
        if sorted(arguments) != sorted(names):
            raise pb_utils.TritonModelException(
                f"{path} requires the inputs {sorted(arguments)}, but config.pbtxt declares {sorted(names)}."
            )
        order = [names.index(argument) for argument in arguments]
        places = [_place(tensor.name, number) for number, tensor in enumerate(model.outputs)]

        def run(*arrays: Array) -> list[Array]:
            with torch.inference_mode():
                returned = script(*(torch.from_numpy(arrays[place]) for place in order))
            results = returned if isinstance(returned, tuple) else (returned,)
            if len(results) <= max(places):
                raise ValueError(
                    f"it returns {len(results)} tensors, but config.pbtxt requires an output at index {max(places)}"
                )
            return [results[place].numpy() for place in places]

        self._check(path, run, model)
        return run

    def explain(self, error: Exception) -> str:
        """Return the last line of an error. The lines before it give the position in the TorchScript code."""
        return str(error).strip().rpartition("\n")[2]

    def _check(self, path: Path, run: Run, model: ServedModel) -> None:
        """Check the output types by running a row of zeros, since TorchScript declares no types."""
        try:
            results = run(*(tensor.zeros(1) for tensor in model.inputs))
        except Exception as error:
            types = {tensor.name: tensor.dtype for tensor in model.inputs}
            raise pb_utils.TritonModelException(
                f"{path} failed on a row of zeros with the types in config.pbtxt ({types}): {self.explain(error)}"
            ) from error
        for tensor, result in zip(model.outputs, results, strict=True):
            if result.dtype != tensor.numpy_dtype:
                raise pb_utils.TritonModelException(
                    f"{path} returns {tensor.name!r} as {result.dtype}, but config.pbtxt declares {tensor.dtype}."
                )


def _place(name: str, number: int) -> int:
    """Return an output's index in the result of `forward`: the `__N` suffix of its name, or its position in the config
    if the name has no such suffix.
    """
    _, separator, index = name.rpartition("__")
    return int(index) if separator and index.isdecimal() else number
