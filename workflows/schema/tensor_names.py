"""How columns are called as tensors, on the wire and in a SavedModel: said once, for both.

A list column travels as two tensors. In a Keras batch and on the wire they are `name__values` and `name__nnzs` (the
number of values of each row), as NVIDIA's loaders have it; the SavedModel's `serving_default` takes `name__offsets`
instead, which is what merlin-systems sends.

A request says what is missing: NaN in a column of floats, `name__valid` beside any other column of single values, and
`MISSING_LIST` values for a list. An empty list, 0 values, is not missing.

Columns may have any name, but TensorFlow and TorchScript take tensors as Python arguments: see `argument_names`.
"""

import builtins
import keyword
import re
from collections import Counter
from collections.abc import Iterable

VALUES = "__values"
NNZS = "__nnzs"
OFFSETS = "__offsets"
VALID = "__valid"
"""bool [num_rows, 1], False where a value is missing. Left out where there is nothing missing."""

MISSING_LIST = -1
"""What `name__nnzs` says of a missing list in a request."""

SCORE = "score"
"""Output of every model: float32 [num_rows, 1]."""

RAGGED_SIGNATURE = "serving_default"
"""Lists as flat values [num_values] and offsets [num_rows + 1], single values as [num_rows]."""

PADDED_SIGNATURE = "serving_padded"
"""Lists as zero-padded values [num_rows, width] and nnzs [num_rows, 1]: every tensor has the batch first, which is what
lets Triton join requests."""

_RESERVED = frozenset(
    {"self", "torch", "ops", "aten", "prim", "fork", "inf", "nan", "infj", "nanj", "attribute", "annotate", "CONSTANTS"}
    | {"uninitialized", "unchecked_cast", "number", "NoneType", "Tensor", "List", "Dict", "Tuple", "Optional"}
    | {*keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
)
"""Names with a meaning in Python, or in the code of a TorchScript file."""
_PLAIN = re.compile(r"(?!as_hex_)[A-Za-z][A-Za-z0-9_]*")
_HEX = re.compile(r"as_hex_((?:[0-9a-f]{2})*)")


def argument_names(names: Iterable[str]) -> dict[str, str]:
    """Return tensor name → argument: the name itself if Python, TensorFlow and TorchScript accept it, else hexadecimal.

    TensorFlow does not distinguish upper and lower case.
    """
    names = list(names)
    counts = Counter(name.lower() for name in names)

    def is_plain(name: str) -> bool:
        return bool(_PLAIN.fullmatch(name)) and name not in _RESERVED and counts[name.lower()] == 1

    return {name: name if is_plain(name) else f"as_hex_{name.encode().hex()}" for name in names}


def tensor_name(argument: str) -> str:
    """Return the name of the tensor that an argument of `argument_names` takes."""
    encoded = _HEX.fullmatch(argument)
    return bytes.fromhex(encoded[1]).decode() if encoded else argument
