"""`.keras` files, of Keras 3 and of Keras 2: they are served as the SavedModel that they would export.

The description of the layers is looked through before Keras reads it: it may name any class of any module, and hold
the code of a `Lambda`.
"""

import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving.foreign import saved_model
from serving.foreign.inputs import Feed, Input
from workflows.errors import ArtifactError, ExportError
from workflows.extras import require
from workflows.heads import Head
from workflows.trained import SAVED_MODEL

_PACKAGES = ("keras", "tf_keras")


def takes(path: Path) -> bool:
    """A zip archive with Keras' description of layers."""
    return path.is_file() and zipfile.is_zipfile(path) and {"config.json", "metadata.json"} <= _names(path)


class Model:
    """A `ForeignModel`.

    Args:
        path: of the file.
    """

    format = SAVED_MODEL

    def __init__(self, path: Path) -> None:
        require("tensorflow", feature=f"serving {path}", extra="cpu")
        keras = _keras_of(path)
        try:
            self._model = keras.saving.load_model(str(path), compile=False, safe_mode=True)
        except Exception as error:  # layers raise anything
            reason = " ".join(str(error).split())[:200]
            raise ArtifactError(f"{path} cannot be loaded by Keras ({type(error).__name__}: {reason}).") from None
        inputs = getattr(self._model, "inputs", None)
        if not inputs:
            raise ArtifactError(f"{path} does not say what it takes. Build it with keras.Input, or save a SavedModel.")
        names = [tensor.name.partition(":")[0] for tensor in inputs]
        self.inputs = tuple(
            Input(name=name, dtype=_dtype(tensor.dtype), shape=tuple(tensor.shape))
            for name, tensor in zip(names, inputs, strict=True)
        )
        self._outputs = list(self._model.output_names)
        self.kept, self.function = self._model, self._call

    def settled(self, feeds: tuple[Feed, ...], rows: pd.DataFrame) -> tuple[Feed, ...]:  # noqa: ARG002
        """The layers say themselves what they take."""
        return feeds

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        try:
            return {name: np.asarray(output) for name, output in self._call(**arrays).items()}
        except Exception as error:  # layers raise anything
            raise ExportError(
                f"the Keras model cannot run the sample: {str(error).strip().partition(chr(10))[0]}."
            ) from None

    def classes(self, output: str) -> tuple[str, ...]:  # noqa: ARG002
        """Layers name none."""
        return ()

    def write(self, feeds: Sequence[Feed], heads: Sequence[Head], target: Path) -> None:
        """As of a SavedModel."""
        saved_model.save(self._model, self._call, feeds, heads, target)

    def _call(self, **arrays: Any) -> dict[str, Any]:
        """Inputs by name → outputs by the names of their layers."""
        made = self._model([arrays[entry.name] for entry in self.inputs], training=False)
        if isinstance(made, dict):
            return made
        outputs = made if isinstance(made, list | tuple) else [made]
        return dict(zip(self._outputs, outputs, strict=True))


def _keras_of(path: Path) -> Any:
    """The Keras that wrote a file.

    Raises:
        ArtifactError: the file is damaged, or names what is no part of Keras.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            config, metadata = (json.loads(archive.read(name)) for name in ("config.json", "metadata.json"))
        is_keras_2 = str(metadata["keras_version"]).startswith("2.")
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ArtifactError(f"{path} cannot be read ({type(error).__name__}: {error}). Save the model again.") from None
    if foreign := sorted(set(_foreign(config))):
        raise ArtifactError(
            f"{path} holds {', '.join(foreign)}, which is code and no layer of Keras. Build the model of Keras' own "
            "layers, or save it as a SavedModel, which holds what they compute."
        )
    if is_keras_2:
        import tf_keras

        return tf_keras
    os.environ["KERAS_BACKEND"] = "tensorflow"  # the only one that a SavedModel can be made of
    import keras

    return keras


def _foreign(part: Any) -> Iterator[str]:
    """What a description of layers names that Keras does not have."""
    if isinstance(part, dict):
        module, name, registered = (part.get(key) for key in ("module", "class_name", "registered_name"))
        if name in ("Lambda", "__lambda__"):
            yield "a Lambda"
        elif isinstance(registered, str) and ">" in registered:
            yield f"the class {registered!r}"
        elif isinstance(module, str) and "class_name" in part and not _is_of_keras(module):
            yield f"{module}.{name}"
        for value in part.values():
            yield from _foreign(value)
    elif isinstance(part, list):
        for value in part:
            yield from _foreign(value)


def _is_of_keras(module: str) -> bool:
    return module.partition(".")[0] in _PACKAGES or module == "builtins"


def _names(path: Path) -> set[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return set(archive.namelist())
    except zipfile.BadZipFile:
        return set()


def _dtype(dtype: Any) -> str:
    name = getattr(dtype, "name", str(dtype))
    return "object" if name == "string" else name
