"""SavedModel signatures whose inputs are named after columns; see `tensor_names.argument_names`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankline.workflows.schema.tensor_names import tensor_name


class Signature:
    """A SavedModel signature that maps named tensors to named tensors.

    Args:
        function: a signature of a loaded SavedModel.

    Attributes:
        inputs: tensor name → `tf.TensorSpec`.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        specs = function.structured_input_signature[1]
        self._arguments = {tensor_name(argument): argument for argument in specs}
        self.inputs: Mapping[str, Any] = {name: specs[argument] for name, argument in self._arguments.items()}

    def __call__(self, /, **tensors: Any) -> Mapping[str, Any]:
        made: Mapping[str, Any] = self.function(**{self._arguments[name]: tensors[name] for name in tensors})
        return made


def name_inputs(directory: Path, message: Any) -> None:
    """Rename the inputs of a SavedModel's signatures from arguments to tensors: a `SignatureDef` allows any name."""
    file = directory / "saved_model.pb"
    saved = message.FromString(file.read_bytes())
    for signature in (each for graph in saved.meta_graphs for each in graph.signature_def.values()):
        for argument in list(signature.inputs):
            if (name := tensor_name(argument)) != argument:
                signature.inputs[name].CopyFrom(signature.inputs[argument])
                del signature.inputs[argument]
    file.write_bytes(saved.SerializeToString(deterministic=True))
