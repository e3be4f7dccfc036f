"""NVTabular graph → `TransformPlan`, operator by operator.

NVTabular on a CPU builds a DataFrame for each request and merges it with the whole vocabulary: 14 ms for one row,
growing with the vocabulary. A compiled plan does the same by array lookups. `serving.parity` holds the two against each
other before anything is exported.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from serving.lowerings import LOWERINGS, Columns, Expression, Input, Lookup
from serving.plan import Column, KeyIndex, TensorSpec, TransformPlan
from workflows.errors import LoweringError
from workflows.upstream import nvt

# A padded list table larger than this would cost more memory than it saves time.
_MAX_PADDED_CELLS = 1 << 28


def compile_workflow(workflow: nvt.Workflow) -> TransformPlan:
    """Lower a fitted workflow that holds no label.

    Raises:
        LoweringError: an operator has no compiled form; the message names it.
    """
    inputs = {
        name: Input(name, np.dtype(column.dtype.to_numpy))
        for name, column in workflow.input_schema.column_schemas.items()
    }
    expressions = _evaluate(workflow.output_node, inputs, {})
    indexes: list[KeyIndex] = []
    columns = []
    for name, schema in workflow.output_schema.column_schemas.items():
        expression = expressions[name]
        if not isinstance(expression, Lookup):
            raise LoweringError(f"column {name!r} reaches the model unchanged. Expected ids: add Categorify.")
        if not any(index is expression.index for index in indexes):
            indexes.append(expression.index)
        number = next(i for i, index in enumerate(indexes) if index is expression.index)
        columns.append(_column(name, number, expression.values, np.dtype(schema.dtype.to_numpy)))
    return TransformPlan(
        inputs=tuple(TensorSpec(name=column.name, dtype=column.dtype.name) for column in inputs.values()),
        indexes=tuple(indexes),
        columns=tuple(columns),
    )


def _evaluate(node: Any, inputs: Columns, done: dict[int, Columns]) -> Columns:
    """Columns that come out of a node, its parents evaluated first and each node once."""
    if id(node) in done:
        return done[id(node)]
    parents = node.parents_with_dependencies
    gathered: dict[str, Expression] = {} if parents else dict(inputs)
    for parent in parents:
        gathered |= _evaluate(parent, inputs, done)
    lowering = LOWERINGS.get(type(node.op))
    if lowering is None:
        raise LoweringError(
            f"NVTabular operator {type(node.op).__name__} (columns {node.input_columns.names}) has no compiled form. "
            f"Available: {', '.join(sorted(op.__name__ for op in LOWERINGS))}. Replace it, or leave it out of serving."
        )
    lowered = lowering(node.op, {name: gathered[name] for name in node.input_columns.names})
    done[id(node)] = {name: lowered[name] for name in node.output_columns.names}
    return done[id(node)]


def _column(name: str, index: int, values: pa.Array, dtype: np.dtype[Any]) -> Column:
    if pa.types.is_list(values.type):
        lengths = pc.list_value_length(values).to_numpy().astype(np.int32)
        width = max(int(lengths.max(initial=0)), 1)
        if len(lengths) * width > _MAX_PADDED_CELLS:
            raise LoweringError(
                f"list column {name!r} needs {len(lengths)} rows of {width} values. Shorten the lists with ListSlice."
            )
        padded = np.zeros((len(lengths), width), dtype=dtype)
        padded[np.arange(width) < lengths[:, None]] = values.flatten().to_numpy()
        return Column(name=name, index=index, values=padded, lengths=lengths)
    if values.null_count or not np.issubdtype(dtype, np.number):
        raise LoweringError(f"column {name!r} ({values.type}) can be missing or is no number. Add Categorify.")
    return Column(name=name, index=index, values=values.to_numpy().astype(dtype))
