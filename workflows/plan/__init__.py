"""Compiled workflows, which transform requests with lookup tables and a few NumPy calls.

Most output columns of a fitted graph are functions of one key: find the key in an index of known keys, get a row
number, take that row of a table. The first `num_unknown` rows are for keys that are not in the index. Joins, list
encodings and other steps are already folded into the table by `rankline.workflows.compiler.compile`. Operations that
cannot be folded, such as arithmetic on a raw number, are steps that run per request.

On disk a plan is `plan.json` and Arrow IPC files, which are memory-mapped so that instances share one copy. It contains
no code, and this package needs neither NVTabular, pandas nor TensorFlow.
"""

from rankline.workflows.plan.key_index import KeyIndex
from rankline.workflows.plan.plan import ANY_WIDTH, Column, ColumnSpec, Computed, StepCall, Transform, TransformPlan
from rankline.workflows.plan.tensors import CandidatePlan, tensor_call

__all__ = [
    "ANY_WIDTH", "CandidatePlan", "Column", "ColumnSpec", "Computed", "KeyIndex", "StepCall", "Transform",
    "TransformPlan", "tensor_call",
]  # fmt: skip
