"""An extra step for wide tables that avoids quadratic work in Triton's scheduler.

When n tensors arrive together, the scheduler checks for each of them whether the next step is ready, and each check
goes through the step's inputs up to the first missing one: n² lookups, about 40 ms for 900 columns. Therefore about √n
columns first pass through a step that returns them unchanged. While these are missing, a check ends after √n inputs on
average; after that, only √n tensors arrive.
"""

from collections.abc import Sequence
from math import isqrt

from rankline.serving.export.config import WIDE
from rankline.workflows.plan import ColumnSpec, Computed, TransformPlan
from rankline.workflows.schema.tensors import Tensor


def relay(tensors: Sequence[Tensor]) -> TransformPlan | None:
    """Return a plan that passes some of a request's tensors through unchanged; None if that would save nothing."""
    if len(tensors) < WIDE:
        return None
    always_there = [tensor for tensor in tensors if tensor.dims == (1,) and not tensor.optional]
    specs = tuple(ColumnSpec(name=tensor.name, dtype=tensor.dtype) for tensor in always_there[: isqrt(len(tensors))])
    columns = tuple(Computed(name=spec.name, source=spec.name, dtype=spec.dtype) for spec in specs)
    return TransformPlan(inputs=specs, indexes=(), columns=columns) if specs else None
