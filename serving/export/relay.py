"""Wide tables in an ensemble: one more step, which spares Triton's scheduler a square of their columns.

When n tensors arrive together, the scheduler asks once for each of them whether the step that takes it is ready, and
each time goes through that step's inputs up to the first that is missing: n² look-ups, some 40 ms for 900 columns. So
about √n columns pass through a step of their own first, which returns them as they are. While they are missing, a look
ends after √n inputs on average; after that, only √n tensors arrive.
"""

from collections.abc import Sequence
from math import isqrt

from rankline.serving.export.config import WIDE
from rankline.workflows.plan import ColumnSpec, Computed, TransformPlan
from rankline.workflows.schema.tensors import Tensor


def relay(tensors: Sequence[Tensor]) -> TransformPlan | None:
    """Return a plan that hands on some of a request's tensors as they are; None where that would save nothing."""
    if len(tensors) < WIDE:
        return None
    always_there = [tensor for tensor in tensors if tensor.dims == (1,) and not tensor.optional]
    specs = tuple(ColumnSpec(name=tensor.name, dtype=tensor.dtype) for tensor in always_there[: isqrt(len(tensors))])
    columns = tuple(Computed(name=spec.name, source=spec.name, dtype=spec.dtype) for spec in specs)
    return TransformPlan(inputs=specs, indexes=(), columns=columns) if specs else None
