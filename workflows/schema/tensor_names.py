"""Names of the tensors for each column, in requests and in a SavedModel.

A list column travels as two tensors. In a Keras batch and in requests they are `name__values` and `name__nnzs` (the
number of values per row), as in NVIDIA's loaders. The SavedModel's `serving_default` takes `name__offsets` instead,
which merlin-systems sends.
Requests mark missing values: NaN in a float column, `name__valid` for any other column of single values, and a length
of `MISSING_LIST` for a list. An empty list, with length 0, is not missing.

Columns may have any name, but TensorFlow and TorchScript pass tensors as Python arguments: see `argument_names`.
"""

import builtins
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

VALUES = "__values"
NNZS = "__nnzs"
OFFSETS = "__offsets"
VALID = "__valid"
"""bool [num_rows, 1], False for missing values. Omitted if no value is missing."""

MISSING_LIST = -1
"""Value of `name__nnzs` that marks a missing list in a request."""

SCORE = "score"
"""Output of a model with a single binary head: float32 [num_rows, 1]."""

RAGGED_SIGNATURE = "serving_default"
"""Lists as concatenated values [num_values] and offsets [num_rows + 1], single values as [num_rows]."""

PADDED_SIGNATURE = "serving_padded"
"""Lists as zero-padded values [num_rows, width] and nnzs [num_rows, 1]. The batch is the first dimension of every
tensor, so Triton can batch requests.
"""

_RESERVED = frozenset(
    {"self", "torch", "ops", "aten", "prim", "fork", "inf", "nan", "infj", "nanj", "attribute", "annotate", "CONSTANTS"}
    | {"uninitialized", "unchecked_cast", "number", "NoneType", "Tensor", "List", "Dict", "Tuple", "Optional"}
    | {*keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
)
"""Reserved words of Python and of TorchScript code."""
_PLAIN = re.compile(r"(?!as_hex_)[A-Za-z][A-Za-z0-9_]*")
_HEX = re.compile(r"as_hex_((?:[0-9a-f]{2})*)")


def argument_names(names: Iterable[str]) -> dict[str, str]:
    """Map tensor names to argument names that Python, TensorFlow and TorchScript accept, hex-encoding unsupported ones.

    TensorFlow does not distinguish upper and lower case.
    """
    names = list(names)
    counts = Counter(name.lower() for name in names)

    def is_plain(name: str) -> bool:
        return bool(_PLAIN.fullmatch(name)) and name not in _RESERVED and counts[name.lower()] == 1

    return {name: name if is_plain(name) else f"as_hex_{name.encode().hex()}" for name in names}


def tensor_name(argument: str) -> str:
    """Convert an argument name from `argument_names` back to the tensor name."""
    encoded = _HEX.fullmatch(argument)
    return bytes.fromhex(encoded[1]).decode() if encoded else argument


class Signature:
    """A callable SavedModel signature that accepts tensors by name. `inputs` maps each name to its `tf.TensorSpec`."""

    def __init__(self, function: Any) -> None:
        self.function = function
        specs = function.structured_input_signature[1]
        self._arguments = {tensor_name(argument): argument for argument in specs}
        self.inputs: Mapping[str, Any] = {name: specs[argument] for name, argument in self._arguments.items()}

    def __call__(self, /, **tensors: Any) -> Mapping[str, Any]:
        made: Mapping[str, Any] = self.function(**{self._arguments[name]: tensors[name] for name in tensors})
        return made


def name_inputs(directory: Path, message: Any) -> None:
    """Rename the inputs of a SavedModel's signatures from argument names to tensor names, because a `SignatureDef`
    allows any name.
    """
    file = directory / "saved_model.pb"
    saved = message.FromString(file.read_bytes())
    for signature in (each for graph in saved.meta_graphs for each in graph.signature_def.values()):
        for argument in list(signature.inputs):
            if (name := tensor_name(argument)) != argument:
                signature.inputs[name].CopyFrom(signature.inputs[argument])
                del signature.inputs[argument]
    file.write_bytes(saved.SerializeToString(deterministic=True))
