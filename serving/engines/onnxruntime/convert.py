"""Convert trained models to ONNX for the `onnxruntime` backends of Rankline and Triton.

The ONNX model uses the padded layout of all served models: inputs named as the tensors, one output per head, any number
of rows and any length of lists.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from rankline.serving.engines import engine_for
from rankline.serving.engines.onnxruntime import ENGINE
from rankline.workflows.core.errors import ExportError
from rankline.workflows.core.optional_packages import require
from rankline.workflows.schema.model_artifact import SAVED_MODEL, TORCH_SCRIPT, ModelArtifact

_OPSET, _IR_VERSION = 17, 8  # supported by ONNX Runtime 1.13 and later
_MAX_BYTES = 2**31 - 1  # limit of a protobuf message
_MAX_REASON = 200
_CONVERTERS = {
    SAVED_MODEL: ("from_saved_model", ("onnx", "tf2onnx")),
    TORCH_SCRIPT: ("from_torch_script", ("onnx",)),
}
"""Format of a trained model → the module here with its `to_onnx`, and the packages that it needs."""


def convert(trained: ModelArtifact, target: Path) -> None:
    """Convert a trained model to ONNX. `rankline.serving.export.parity` later checks that the scores are equal."""
    path, instead = trained.model_path, f"Use the engine {engine_for(trained.format).name}."
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    if (num_bytes := sum(file.stat().st_size for file in files)) > _MAX_BYTES:
        raise ExportError(f"{path} is {num_bytes / 2**30:.1f} GiB, but an ONNX file can be at most 2 GiB. {instead}")
    converter, packages = _CONVERTERS[trained.format]
    for module in (*packages, ENGINE.module):
        require(module, feature="the engine onnx", extra=ENGINE.extra)
    try:
        content = _serialized(import_module(f"{ENGINE.package}.{converter}").to_onnx(trained, _OPSET))
    except Exception as error:  # converters raise anything
        reason = " ".join(str(error).split())[:_MAX_REASON]
        raise ExportError(
            f"{path} cannot be converted to ONNX ({type(error).__name__}: {reason}). {instead}"
        ) from error
    target.write_bytes(content)


def _serialized(model: Any) -> bytes:
    """Check and serialize the model, excluding the converter's metadata about itself and this machine."""
    from onnx import checker, helper

    _clear_notes(model.graph)
    used = {node.domain for node in model.graph.node}
    versions = [version for version in model.opset_import if version.domain in used]
    for tensor in (*model.graph.input, *model.graph.output):
        for axis, dim in enumerate(tensor.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                dim.dim_param = f"width of {tensor.name}" if axis else "rows"
    made = helper.make_model(model.graph, opset_imports=versions, ir_version=_IR_VERSION, producer_name="rankline")
    checker.check_model(made, full_check=True)
    return bytes(made.SerializeToString())


def _clear_notes(graph: Any) -> None:
    """Remove the converter's notes, such as source lines on this machine, from a graph and its subgraphs."""
    graph.ClearField("doc_string")
    for part in (*graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info):
        part.ClearField("doc_string")
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        attribute.ClearField("doc_string")
        if attribute.HasField("g"):
            _clear_notes(attribute.g)
