"""Export of PyTorch models as TorchScript, which Triton's PyTorch backend runs and which contains no Python code.

`forward` takes the tensors of the padded layout by name: for a single-value feature `name` of shape (N, 1), int64 for
ids and float32 for numbers; for a list `name__values` int64 (N, W) and `name__nnzs` int32 (N, 1), where row i has its
first nnzs[i] values. It returns float32 (N, 1), or a tuple with an output per head. N and W may differ between calls.
"""

import inspect
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rankline.training.export.mlflow_frames import Arrays, FrameScorer
from rankline.training.models.tabular.torch_mlp import outputs_of
from rankline.workflows.core.errors import ExportError
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.model_artifact import OUTPUTS
from rankline.workflows.schema.targets import output_names
from rankline.workflows.schema.tensor_names import NNZS, SCORE, VALUES, argument_names
from rankline.workflows.torchscript.program import input_names, load_torch_script, quiet_torch_script


def export_torch_script(model: nn.Module, spec: FeatureSpec, path: Path) -> None:
    example = _example(spec)
    device = next(model.parameters()).device
    scorer = _scorer(model, spec, tuple(example)).eval()
    arguments = tuple(tensor.to(device) for tensor in example.values())
    with warnings.catch_warnings(record=True) as noticed, quiet_torch_script(), torch.no_grad():
        warnings.simplefilter("always", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        # Traced, not compiled, so that a model may use any Python code.
        traced = torch.jit.trace(scorer, arguments, check_trace=False)  # type: ignore[no-untyped-call]
    for warning in noticed:
        if issubclass(warning.category, torch.jit.TracerWarning):  # type: ignore[attr-defined]
            reason = str(warning.message).partition(".")[0]
            raise ExportError(
                f"the model does not process all rows in the same way, so it cannot be exported for serving: {reason}."
            )
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    traced.save(str(path), _extra_files={OUTPUTS: json.dumps(output_names(spec.heads))})


def _load_pyfunc(data_path: str) -> FrameScorer:
    """Load a logged model. MLflow looks up this function by name in the loader module."""
    model, outputs = load_torch_script(Path(data_path), torch, remedy="Train again.")
    names = input_names(model)

    def score(arrays: Arrays) -> dict[str, Any]:
        with torch.inference_mode():
            scores = model(*(torch.from_numpy(_typed(arrays[name])) for name in names))
        parts = scores if isinstance(scores, tuple) else (scores,)
        return dict(zip(outputs or [SCORE], (part.numpy() for part in parts), strict=True))  # older files lack names

    return FrameScorer(names, score)


def _typed(array: Any) -> Any:
    return np.ascontiguousarray(array, np.float32 if array.dtype.kind == "f" else array.dtype)


def _example(spec: FeatureSpec) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for feature in spec.categorical:
        if feature.is_list:
            tensors[feature.name + VALUES] = torch.zeros((2, 3), dtype=torch.int64)
            tensors[feature.name + NNZS] = torch.ones((2, 1), dtype=torch.int32)
        else:
            tensors[feature.name] = torch.zeros((2, 1), dtype=torch.int64)
    return tensors | {feature.name: torch.zeros((2, 1)) for feature in spec.continuous}


def _scorer(model: nn.Module, spec: FeatureSpec, names: tuple[str, ...]) -> nn.Module:
    def forward(self: Any, *tensors: torch.Tensor) -> Any:
        inputs = _from_padded(spec, dict(zip(names, tensors, strict=True)))
        outputs = outputs_of(spec.heads, self.model(inputs).logit)
        return outputs[0] if len(outputs) == 1 else outputs

    arguments = ("self", *argument_names(names).values())
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in arguments]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # tracing reads names here
    scorer: nn.Module = type("Scorer", (nn.Module,), {"forward": forward})()
    scorer.model = model
    return scorer


def _from_padded(spec: FeatureSpec, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    inputs: dict[str, Any] = dict(tensors)
    for feature in spec.categorical:
        if feature.is_list:
            padded, nnzs = inputs.pop(feature.name + VALUES), inputs.pop(feature.name + NNZS)
            is_value = torch.ones_like(padded).cumsum(1) <= nnzs  # `arange` would fix the device in the trace
            inputs[feature.name] = (padded[is_value], nnzs.cumsum(0) - nnzs)
    return inputs
