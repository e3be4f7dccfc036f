"""Import models trained elsewhere and convert them to the layout of served models. Each format has its own module.

    saved_model.py    SavedModels of any Keras version and of plain modules
    keras_file.py     .keras files of Keras 2 and 3
    torch_script.py   TorchScript
    onnx_file.py      ONNX from any converter
    lightgbm.py       LightGBM's text files
    xgboost.py        XGBoost's JSON and UBJSON files

Each module has a function `can_load(path)`, which inspects a file's content, and a class `Model`, a `ForeignModel`.
Other packages add formats through the entry-point group `rankline.model_formats`, which names such modules.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pandas as pd
from numpy.typing import NDArray

from rankline.serving.importers.input_binding import Input, InputBinding
from rankline.workflows.core.errors import ArtifactError, ConfigError
from rankline.workflows.core.optional_packages import installed
from rankline.workflows.schema.model_artifact import KIND, TrainedModel
from rankline.workflows.schema.targets import Head
from rankline.workflows.storage.artifacts import MANIFEST, Manifest

ENTRY_POINTS = "rankline.model_formats"
_MODULES = ("saved_model", "keras_file", "torch_script", "onnx_file", "lightgbm", "xgboost")
_TORCH_SCRIPT = "Expected TorchScript: torch.jit.trace(model, example).save(path)"
_SAVED = "Expected a file from save_model of LightGBM (.txt) or XGBoost (.json, .ubj), not from dump_model"
_REMEDIES = {
    ".pkl": "A pickle runs code when it is loaded. Convert the model to ONNX, for example with skl2onnx",
    ".joblib": "A pickle runs code when it is loaded. Convert the model to ONNX, for example with skl2onnx",
    ".h5": "Save it as a .keras file or a SavedModel",
    ".pt": f"{_TORCH_SCRIPT}. torch.save writes a pickle",
    ".pth": f"{_TORCH_SCRIPT}. torch.save writes a pickle",
    ".pt2": f"{_TORCH_SCRIPT}, not a file from torch.export",
    ".json": _SAVED,
    ".ubj": _SAVED,
    ".txt": _SAVED,
    ".cbm": "Export it as ONNX: model.save_model(path, format='onnx')",
}


class ForeignModel(Protocol):
    """A model trained outside Rankline, in the format of its own framework.

    Attributes:
        format: the format that `write` writes, from `rankline.workflows.schema.model_artifact`.
        inputs: the model's inputs; empty if it takes every column by name.

    Raises:
        ArtifactError: the model cannot be loaded, or would run code beyond a model's computation.
        MissingExtraError: the packages that load the model are not installed.
    """

    format: str
    inputs: tuple[Input, ...]

    def __init__(self, path: Path) -> None: ...

    def resolve_bindings(self, feeds: tuple[InputBinding, ...], rows: pd.DataFrame) -> tuple[InputBinding, ...]:  # noqa: ARG002
        """Return `feeds`, which were inferred from names and types, in the layout that the model expects.

        They are unchanged, unless only a trial with encoded rows can determine it.
        """
        return feeds

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Score a dict of input arrays with the model's framework. Return a dict of outputs, [rows] or [rows, width].

        Raises:
            ExportError: the model cannot run the arrays.
        """

    def classes(self, output: str) -> tuple[str, ...]:  # noqa: ARG002
        """Return the class names of an output's columns; empty if the model does not record them."""
        return ()

    def take_as_missing(self, value: float) -> None:
        """Treat a value as missing, besides NaN. Raise ConfigError if the model's format does not support this."""
        raise ConfigError(f"--missing {value:g} is supported only for XGBoost models. Remove the option.")

    def assumed(self) -> tuple[str, ...]:
        """Return assumptions that the scores depend on but the file does not record, one sentence each."""
        return ()

    def write(self, feeds: Sequence[InputBinding], heads: Sequence[Head], target: Path) -> None:
        """Write the model in its served layout: padded columns as inputs, one output per head.

        `heads` are outputs by the model's own names, which `rankline.workflows.schema.targets.output_names` returns.

        Raises:
            ExportError: the model cannot be written in this layout.
        """


def open_model(path: Path) -> ForeignModel:
    """Open a model of any format, which is detected from its content."""
    if not path.exists():
        raise ArtifactError(f"{path} does not exist. Expected a model: {', '.join(_formats())}.")
    if not (path.is_file() or path.is_dir()):  # reading a FIFO or a device may never end
        raise ArtifactError(f"{path} is neither a file nor a directory. Expected a model: {', '.join(_formats())}.")
    if path.is_file() and not path.stat().st_size:
        raise ArtifactError(f"{path} is empty. Save the model again.")
    for module in _modules():
        if module.can_load(path):
            model: ForeignModel = module.Model(path)
            return model
    remedy = _REMEDIES.get(path.suffix.lower(), f"Expected one of: {', '.join(_formats())}")
    if path.is_dir() and (path / MANIFEST).is_file():
        if Manifest.read(path).kind == KIND:
            return open_model(TrainedModel.load(path).model_path)
        remedy = "It is a Rankline artifact. Export it with its recipe: rankline export RECIPE"
    raise ArtifactError(f"{path} is not a model that can be served. {remedy}.")


def _modules() -> Iterator[ModuleType]:
    for name in _MODULES:
        yield import_module(f"{__name__}.{name}")
    yield from installed(ENTRY_POINTS, ModuleType).values()


def _formats() -> list[str]:
    known = ["SavedModel", ".keras", "TorchScript", "ONNX", "LightGBM (.txt)", "XGBoost (.json, .ubj)"]
    return known + [point.name for point in entry_points(group=ENTRY_POINTS)]
