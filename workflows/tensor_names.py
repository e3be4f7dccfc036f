"""How columns are called as tensors, on the wire and in a SavedModel: said once, for both.

A list column travels as two tensors. In a Keras batch and on the wire they are `name__values` and `name__nnzs` (the
number of values of each row), as NVIDIA's loaders have it; the SavedModel's `serving_default` takes `name__offsets`
instead, which is what merlin-systems sends.

A request says what is missing: NaN in a column of floats, `name__valid` beside any other column of single values, and
`MISSING_LIST` values for a list. An empty list, 0 values, is not missing.
"""

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
