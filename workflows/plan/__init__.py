"""A compiled workflow: what a request needs of NVTabular, as lookup tables and a few NumPy calls.

Most output columns of a fitted graph are functions of one key: look the key up in an index of known keys, get a row
number, take that row of a table. The first `num_unknown` rows are for keys that the index does not know. Joins, list
encodings and all else that happened on the way are already in the table, folded in by
`rankline.workflows.compiler.compile`. What cannot be folded, arithmetic on a raw number say, is a step that runs per
request.

On disk a plan is `plan.json` and Arrow IPC files, memory-mapped when loaded, so that instances share one copy. It holds
no code, and this package needs neither NVTabular, pandas nor TensorFlow.
"""

from rankline.workflows.plan.candidates import CandidatePlan
from rankline.workflows.plan.key_index import KeyIndex
from rankline.workflows.plan.plan import ANY_WIDTH, Column, ColumnSpec, Computed, StepCall, Transform, TransformPlan
from rankline.workflows.plan.tensors import tensor_call

__all__ = [
    "ANY_WIDTH", "CandidatePlan", "Column", "ColumnSpec", "Computed", "KeyIndex", "StepCall", "Transform",
    "TransformPlan", "tensor_call",
]  # fmt: skip
