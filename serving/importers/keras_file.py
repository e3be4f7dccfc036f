"""Import `.keras` files of Keras 2 and 3, which are checked before Keras reads them and served as SavedModels.

Keras instantiates whatever the file's config names: in Keras 2 classes and functions of any module, in some releases of
Keras 3 anything in Keras, including functions that download files or load programs. Therefore everything in the config
that is not known to be a layer or part of a layer is rejected, at any depth.
"""

import inspect
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankline.serving.importers.input_binding import Input
from rankline.serving.importers.saved_model import TensorFlowModel, line_of
from rankline.workflows.core.errors import ArtifactError, ExportError
from rankline.workflows.core.optional_packages import require

_MAX_GROWTH, _SPARE_BYTES = 4, 64 << 20
"""Bytes of variables allowed per byte of the file, which may store them in a smaller type, plus a fixed allowance."""

MAX_JSON_BYTES = 64 << 20
"""Maximum size of a config; configs of the largest models have a few megabytes."""

MAX_RATIO = 10
"""Maximum ratio of unpacked to packed size, beyond the first MiB; Keras does not compress."""

MAX_MEMBERS = 10_000
"""Maximum number of files in an archive, all of which Keras unpacks: usually a few, plus files of vocabularies."""

_CONFIG, _METADATA = "config.json", "metadata.json"
_NAMESPACES = (
    *("layers", "initializers", "regularizers", "constraints", "activations", "losses", "metrics", "optimizers"),
    *("optimizers.schedules", "models", "dtype_policies", "mixed_precision", "quantizers"),
)
_OF_FUNCTIONS = ("activations", "losses", "metrics", "regularizers")
_MODULE = re.compile(
    r"builtins|(tf_)?keras(\.src)?(\.(layers|initializers|regularizers|constraints|activations|losses|metrics|optimizers|"
    r"models|engine|dtype_policies|mixed_precision|quantizers)(\.\w+)*)?"
)
_OPERATIONS = re.compile(r"keras\.src\.ops\.\w+")
_PLAIN = frozenset(
    {
        *("__keras_tensor__", "__tensor__", "__numpy__", "__bytes__", "__ellipsis__", "__slice__", "__tuple__"),
        "TensorShape",
    }
)
"""Values that both Keras versions serialize like classes."""
_OF_CODE = frozenset({"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"})
"""Layers that contain code, or load it from elsewhere."""
_NO_FUNCTIONS = frozenset({"get", "serialize", "deserialize"})
_SYMBOLIC = frozenset({"TFOpLambda", "SlicingOpLambda"})
"""Keras 2 layers for TensorFlow functions called between layers."""
_TENSORFLOW = re.compile(
    r"(compat\.v1\.)?((math|nn|linalg|__operators__|sparse|signal)\.\w+|abs|add|argmax|argmin|boolean_mask|"
    r"broadcast_to|cast|clip_by_value|concat|constant|convert_to_tensor|cos|cumsum|divide|equal|exp|expand_dims|eye|fill|"
    r"floor|gather|gather_nd|greater|greater_equal|identity|less|less_equal|logical_(and|not|or)|matmul|maximum|"
    r"minimum|multiply|negative|norm|not_equal|one_hot|ones|ones_like|pad|pow|range|rank|reduce_\w+|repeat|reshape|"
    r"reverse|round|searchsorted|sequence_mask|shape|sigmoid|sign|sin|size|slice|sort|split|sqrt|square|squeeze|stack|"
    r"stop_gradient|strided_slice|subtract|tanh|tensordot|tile|transpose|unstack|where|zeros|zeros_like)"
)
"""TensorFlow functions that only compute."""


def can_load(path: Path) -> bool:
    """Whether a file is a zip archive with a Keras config."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return {_CONFIG, _METADATA} <= set(archive.namelist())
    except zipfile.BadZipFile:
        return False


def checked_release(path: Path) -> str:
    """Check an archive's files, and return the Keras release that wrote it."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(archive, path)
            for name in archive.namelist():
                if name.endswith(".h5"):
                    _check_weights(archive.read(name), path)
            return str(_json_of(archive, _METADATA)["keras_version"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, RuntimeError, zipfile.BadZipFile) as error:
        raise _damaged(path, error) from None


def check_names(path: Path, keras: Any) -> None:
    """Raise ArtifactError if a config names classes or functions that are not harmless parts of Keras.

    The top-level compile config is skipped, since it is not read for scoring. Those of nested models are checked.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            config = _json_of(archive, _CONFIG)
        config.pop("compile_config", None)
        foreign = sorted(set(_Names(keras).foreign(config)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, zipfile.BadZipFile) as error:
        raise _damaged(path, error) from None
    if foreign:
        raise ArtifactError(
            f"{path} contains {', '.join(foreign)}, expected only built-in Keras objects without side effects. "
            "Build the model from built-in Keras layers, or save the model as a SavedModel, which includes the "
            "computation of every layer."
        )


class _Names:
    """Classes and functions of a Keras module that a config may name."""

    def __init__(self, keras: Any) -> None:
        self._keras = keras
        parts = {namespace: _members(keras, namespace) for namespace in _NAMESPACES}
        found = [entry for part in parts.values() for entry in part.items()]
        self._classes = {name for name, value in found if isinstance(value, type)} - _OF_CODE
        self._classes |= {"Functional", "Model", "Sequential", "DTypePolicy", "FloatDTypePolicy"}
        found = [entry for namespace in _OF_FUNCTIONS for entry in parts[namespace].items()]
        self._functions = {name for name, value in found if inspect.isfunction(value)} - _NO_FUNCTIONS

    def foreign(self, part: Any) -> Iterator[str]:
        """Yield the forbidden names in a part of a config."""
        if isinstance(part, list):
            for value in part:
                yield from self.foreign(value)
        elif isinstance(part, dict):
            if "class_name" in part and not self._is_known(part):
                yield _called(part)
            if isinstance(part.get("vocabulary"), str):
                yield f"the path {part['vocabulary']!r} of a vocabulary"
            for value in part.values():
                yield from self.foreign(value)

    def _is_known(self, part: dict[str, Any]) -> bool:
        name, module, registered = (part.get(key) for key in ("class_name", "module", "registered_name"))
        if not all(isinstance(word, str | None) for word in (name, module, registered)):
            return False
        if name in _PLAIN:
            return True
        if name == "function":
            function = part.get("config")
            is_function = isinstance(function, str) and function in self._functions
            return is_function and registered in (None, function) and _is_module(module)
        if registered not in (None, name):
            return False
        if name in _SYMBOLIC:
            function = part["config"]["function"]
            return _is_module(module) and isinstance(function, str) and bool(_TENSORFLOW.fullmatch(function))
        return self._is_operation(name, module) or (name in self._classes and _is_module(module))

    def _is_operation(self, name: Any, module: str | None) -> bool:
        """Whether a name refers to a Keras 3 operation on layer outputs, such as adding two tensors."""
        if not module or not _OPERATIONS.fullmatch(module) or self._keras.__name__ != "keras":
            return False
        try:
            found = vars(import_module(module)).get(name)
        except ImportError:
            return False
        return isinstance(found, type) and issubclass(found, self._keras.Operation) and found.__module__ == module


def _is_module(name: str | None) -> bool:
    """Whether a name is that of a Keras module. None is accepted too, since Keras then searches only its own names."""
    return name is None or _MODULE.fullmatch(name) is not None


def _members(keras: Any, namespace: str) -> dict[str, Any]:
    for name in namespace.split("."):
        keras = getattr(keras, name, None)
    return {} if keras is None else {name: value for name, value in inspect.getmembers(keras) if name[0] != "_"}


def _called(part: dict[str, Any]) -> str:
    name, module, registered = (part.get(key) for key in ("class_name", "module", "registered_name"))
    if not isinstance(name, str):
        return f"the class {name!r}"
    if name in ("Lambda", "__lambda__"):
        return "a Lambda"
    if name in _SYMBOLIC:
        return f"the function tf.{part['config']['function']}"
    if name == "function":
        name = part.get("config")
    if isinstance(registered, str) and ">" in registered:
        return f"the custom {registered!r}"
    return f"{module}.{name}" if module else f"{name!r}"


def _check_members(archive: zipfile.ZipFile, path: Path) -> None:
    members = archive.infolist()
    if outside := [m.filename for m in members if m.filename[:1] in "/\\" or ".." in PurePosixPath(m.filename).parts]:
        raise ArtifactError(f"{path} has files with paths outside the archive: {outside}. Save the model again.")
    if len(members) > MAX_MEMBERS:
        raise ArtifactError(
            f"{path} contains {len(members)} files, expected at most {MAX_MEMBERS}. Save the model again."
        )
    total, limit = sum(member.file_size for member in members), (1 << 20) + MAX_RATIO * path.stat().st_size
    if total > limit:
        raise ArtifactError(
            f"{path} unpacks to {total >> 20} MiB, expected at most {limit >> 20}. Save the model again."
        )


def _json_of(archive: zipfile.ZipFile, name: str) -> Any:
    size = archive.getinfo(name).file_size
    if size > MAX_JSON_BYTES:
        raise ArtifactError(
            f"{archive.filename} has a {name} of {size >> 20} MiB, expected at most {MAX_JSON_BYTES >> 20}."
        )
    return json.loads(archive.read(name))


def _check_weights(content: bytes, path: Path) -> None:
    """Raise ArtifactError if HDF5 weights link to other files or take more bytes than the file itself."""
    import h5py

    with h5py.File(BytesIO(content), "r") as file:
        datasets: dict[int, int] = {}
        if outside := sorted(_leading_outside(file, datasets)):
            raise ArtifactError(f"{path} has weights that link to other files: {outside}. Save the model again.")
    if (total := sum(datasets.values())) > len(content):  # compressed or never written
        raise ArtifactError(
            f"{path} declares {total} bytes of weights, but the weights file has only {len(content)} bytes. Save the "
            "model again without compression."
        )


def _leading_outside(group: Any, visited: dict[int, int]) -> Iterator[str]:
    """Yield the names of links and datasets that refer to other files. Record the size of each object in `visited`,
    keyed by its address.
    """
    import h5py

    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            yield name
            continue
        part = group[name]
        address = h5py.h5o.get_info(part.id).addr
        if address in visited:
            continue
        visited[address] = part.nbytes if isinstance(part, h5py.Dataset) else 0
        if isinstance(part, h5py.Group):
            yield from _leading_outside(part, visited)
        elif isinstance(part, h5py.Dataset) and (part.external or part.is_virtual):
            yield part.name


def _damaged(path: Path, error: Exception) -> ArtifactError:
    reason = " ".join(str(error).split())[:200]
    return ArtifactError(f"{path} cannot be read ({type(error).__name__}: {reason}). Save the model again.")


class Model(TensorFlowModel):
    def __init__(self, path: Path) -> None:
        require("tensorflow", feature=f"serving {path}", extra="cpu")
        import tensorflow as tf

        keras = _keras_of(path)
        try:
            with tf.variable_creator_scope(_Creator(_MAX_GROWTH * path.stat().st_size + _SPARE_BYTES)):
                self.kept = keras.saving.load_model(str(path), compile=False, safe_mode=True)
        except Exception as error:  # layers raise anything
            reason = " ".join(str(error).split())[:200]
            raise ArtifactError(f"{path} cannot be loaded by Keras ({type(error).__name__}: {reason}).") from None
        inputs = getattr(self.kept, "inputs", None)
        if not inputs:
            raise ArtifactError(f"{path} does not declare its inputs. Build it with keras.Input, or save a SavedModel.")
        self.inputs = tuple(
            Input(name=_name(tensor), dtype=_dtype(tensor.dtype), shape=(None, *tensor.shape[1:])) for tensor in inputs
        )  # a Sequential built by a call has the number of rows of that call in its shapes
        self._taken = inputs[0] if len(inputs) == 1 else self.kept.input
        names = getattr(self.kept, "output_names", None)  # missing in a Sequential of Keras 3
        self._outputs = list(names or [self.kept.layers[-1].name])

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        try:
            return {name: np.asarray(output) for name, output in self.function(**arrays).items()}
        except Exception as error:  # layers raise anything
            raise ExportError(f"the Keras model failed on the sample: {line_of(error)}.") from None

    def function(self, **arrays: Any) -> dict[str, Any]:
        """Run the model on named inputs and return its outputs by layer name. Outputs that share one are numbered."""
        import tensorflow as tf

        given = tf.nest.map_structure(lambda tensor: arrays[_name(tensor)], self._taken)
        made = self.kept(given, training=False)
        if isinstance(made, dict):
            return made
        outputs, names = tf.nest.flatten(made), self._outputs
        if len(set(names)) < len(names):
            names = [f"{name}_{place}" for place, name in enumerate(names)]
        return dict(zip(names, outputs, strict=True))


class _Creator:
    """A variable creator that raises ValueError before TensorFlow allocates more than the file can contain."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0

    def __call__(self, create: Any, **options: Any) -> Any:
        import tensorflow as tf

        initial, shape = options["initial_value"], options.get("shape")
        if shape is None:  # Keras 3; tracing allocates nothing
            shape = (
                tf.function(initial).get_concrete_function().output_shapes if callable(initial) else np.shape(initial)
            )
        dtype = tf.as_dtype(options.get("dtype") or tf.float32)
        self._num_bytes += dtype.size * (tf.TensorShape(shape).num_elements() or 0)
        if self._num_bytes > self._max_bytes:
            raise ValueError(
                f"its layers require at least {self._num_bytes} bytes for variables, but a file of this size can "
                f"contain at most {self._max_bytes}"
            )
        return create(**options)


def _keras_of(path: Path) -> Any:
    if checked_release(path).startswith("2."):
        import tf_keras as keras
    else:
        os.environ["KERAS_BACKEND"] = "tensorflow"  # the only backend that exports SavedModels
        import keras
    check_names(path, keras)
    return keras


def _name(tensor: Any) -> str:
    name: str = tensor.name
    return name.partition(":")[0]


def _dtype(dtype: Any) -> str:
    name = getattr(dtype, "name", str(dtype))
    return "object" if name == "string" else name
