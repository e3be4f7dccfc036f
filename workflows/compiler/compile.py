"""Compile an NVTabular graph to a `TransformPlan`, operator by operator.

On a CPU, NVTabular builds a DataFrame for each request and merges it with the whole vocabulary: 14 ms for one row, more
for larger vocabularies. A compiled plan computes the same with array lookups and a few NumPy calls.
`rankline.serving.export.parity` compares the two before anything is exported.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rankline.workflows.compiler.expressions import Computed, Expression, Input, Lookup, apply
from rankline.workflows.compiler.operators import LOWERINGS, REFUSED
from rankline.workflows.core.errors import ConfigError, LoweringError, RanklineError, UnfitError
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.plan import ANY_WIDTH, CandidatePlan, Column, ColumnSpec, KeyIndex, StepCall, TransformPlan
from rankline.workflows.plan import Computed as ComputedColumn
from rankline.workflows.plan.columns import Lists, padded_of
from rankline.workflows.plan.steps import fitting

from merlin.dag import Graph, iter_nodes  # isort: skip
from merlin.dag.ops.stat_operator import StatOperator  # isort: skip
from merlin.dag.ops.subgraph import Subgraph  # isort: skip

# Beyond this size, a padded list table costs more memory than the time it saves is worth.
_MAX_PADDED_CELLS = 1 << 28


def compile_workflow(
    workflow: nvt.Workflow,
    dtypes: Mapping[str, str] | None = None,
    candidates: Collection[str] = (),
    columns: Collection[str] | None = None,
    *,
    widths: Mapping[str, int] | None = None,
    refuses_missing: bool = False,
) -> TransformPlan:
    """Compile a fitted workflow, which must not contain labels, to a `TransformPlan`.

    Args:
        workflow: the workflow.
        dtypes: output column → NumPy dtype name that the model takes; other columns keep the workflow's dtype.
        candidates: raw columns that may have several values per row; the plan is checked to support a `CandidatePlan`.
        columns: output columns to compute, from only the raw columns that they need; None for all outputs and inputs.
        widths: output column → list width that the model requires; other lists are as wide as their longest list.
        refuses_missing: when the workflow leaves a possible missing value unfilled, True rejects the requests in which
            one occurs, like NVTabular on a CPU, and False rejects the workflow.

    Raises:
        LoweringError: an operator has no compiled form, candidates are combined with other columns, or a lookup table
            does not fit the dtype or width of its column; the message names the operator or column.
    """
    _check_statistics_apart(workflow.output_node)
    specs = input_specs(workflow)
    expressions = _evaluate(workflow.output_node, {spec.name: Input(spec) for spec in specs}, {})
    dtypes, widths = dtypes or {}, widths or {}
    linked = _Linker(
        {
            name: _fitted(name, expressions[name], dtypes.get(name), widths.get(name))
            for name in workflow.output_schema.column_names
            if columns is None or name in columns
        },
        widths=widths,
        refuses_missing=refuses_missing,
    )
    if columns is not None:
        specs = tuple(spec for spec in specs if spec.name in linked.read)
    plan = TransformPlan(inputs=specs, indexes=linked.indexes, steps=linked.steps, columns=linked.columns)
    if candidates:
        CandidatePlan.of(plan, candidates)  # raises LoweringError if the plan does not support candidates
    return plan


def input_specs(workflow: nvt.Workflow) -> tuple[ColumnSpec, ...]:
    return tuple(_input_spec(name, schema) for name, schema in workflow.input_schema.column_schemas.items())


def check_operators(workflow: nvt.Workflow, uncompiled: Collection[str] = ()) -> None:
    """Raise `LoweringError` if the workflow contains an operator that cannot process serving requests."""
    for name, kind in sorted((_called(kind), kind) for kind in _kinds(workflow.output_node)):
        if kind in REFUSED and not (kind is ops.LambdaOp and name in uncompiled):
            raise LoweringError(f"NVTabular operator {name} {REFUSED[kind]}.")


def check_uncompiled(workflow: nvt.Workflow, named: Collection[str]) -> None:
    """Check that `named` lists exactly the operators that cannot be compiled and must be served through NVTabular.

    Raises:
        ConfigError: a named operator is not in the workflow, or has a compiled form.
        LoweringError: an operator is missing from the list, or cannot be served at all.
    """
    found = {_called(kind): kind for kind in _kinds(workflow.output_node) if not _is_compiled(kind)}
    if wrong := sorted(set(named) - set(found)):
        raise ConfigError(
            f"uncompiled contains {wrong}, expected only operators of this workflow that cannot be compiled: "
            f"{sorted(found) or 'none'}."
        )
    check_operators(workflow, named)
    if missing := sorted(set(found) - set(named)):
        raise LoweringError(f"{missing} cannot be compiled either. Pass --uncompiled {','.join(sorted(found))}.")


def _kinds(output_node: Any) -> set[type]:
    kinds: set[type] = set()
    for node in iter_nodes([output_node]):
        kinds |= _kinds(node.op.graph.output_node) if isinstance(node.op, Subgraph) else {type(node.op)}
    return kinds


def _is_compiled(kind: type) -> bool:
    return kind not in REFUSED and (kind in LOWERINGS or "lower" in vars(kind))


def _called(kind: type) -> str:
    """Return an operator's name as users write it."""
    return "LambdaOp" if kind is ops.LambdaOp else kind.__name__


def _input_spec(name: str, schema: Any) -> ColumnSpec:
    dtype = np.dtype(schema.dtype.to_numpy)
    if dtype.kind == "U":  # text that Dask converted to Arrow's strings, as it does unless `dask_options` is imported
        dtype = np.dtype(object)
    if dtype.kind not in "iufbO":
        remedy = "Fit the workflow on int64 microseconds since 1970" if dtype.kind in "mM" else "Convert it in the data"
        raise LoweringError(f"input {name!r} is {dtype}, expected numbers or strings. {remedy}.")
    return ColumnSpec(name=name, dtype=dtype.name, width=ANY_WIDTH if schema.is_list else None)


def _check_statistics_apart(output_node: Any) -> None:
    """Check that no two operators share a statistics file: NVTabular names files by column and overwrites them."""
    owners: dict[str, Any] = {}
    for node in Graph.get_nodes_by_op_type([output_node], StatOperator):
        paths = getattr(node.op, "stats" if isinstance(node.op, ops.TargetEncoding) else "categories", {})
        for name, path in paths.items():
            if owners.setdefault(path, node.op) is not node.op:
                kinds = sorted(type(op).__name__ for op in (owners[path], node.op))
                raise LoweringError(
                    f"{kinds[0]} and {kinds[1]} on {name!r} wrote their statistics to the same file, so one "
                    "overwrote the other's. Rename the column before one of these operators."
                )


def _evaluate(
    node: Any, inputs: Mapping[str, Expression], done: dict[int, dict[str, Expression]]
) -> dict[str, Expression]:
    if id(node) in done:
        return done[id(node)]
    gathered = dict(inputs)
    for parent in node.parents_with_dependencies:
        gathered |= _evaluate(parent, inputs, done)
    selector = node.input_columns
    lowered = _lower(node.op, selector, {name: gathered[name] for name in selector.names})
    if absent := [name for name in node.output_columns.names if name not in lowered]:
        raise LoweringError(
            f"{type(node.op).__name__} outputs columns {absent}, but its method `lower` returns only "
            f"{sorted(lowered)}. Drop these columns, or fix `lower`."
        )
    done[id(node)] = {name: lowered[name] for name in node.output_columns.names}
    return done[id(node)]


def _lower(op: Any, selector: nvt.ColumnSelector, columns: Mapping[str, Expression]) -> Mapping[str, Expression]:
    if isinstance(op, Subgraph):
        if op.loop_until is not None:
            raise LoweringError(f"subgraph {op.name!r} uses loop_until, which cannot be compiled. Unroll the loop.")
        return _evaluate(op.graph.output_node, columns, {})
    kind = type(op)
    if kind in REFUSED:
        raise LoweringError(f"NVTabular operator {_called(kind)} (columns {selector.names}) {REFUSED[kind]}.")
    # An operator of another package may define its own lowering. An inherited one belongs to another operator.
    lowering = LOWERINGS.get(kind) or vars(kind).get("lower")
    if lowering is None:
        raise LoweringError(
            f"NVTabular operator {kind.__name__} (columns {selector.names}) cannot be compiled. Replace it, add a "
            "method `lower`, leave it out of serving, or run the workflow through NVTabular: --uncompiled "
            f"{kind.__name__}. Supported: {', '.join(sorted({op.__name__ for op in LOWERINGS}))}."
        )
    try:
        lowered = lowering(op, selector, columns)
    except Exception as error:
        if kind in LOWERINGS or isinstance(error, RanklineError):
            raise
        raise LoweringError(
            f"{kind.__name__}.lower failed ({type(error).__name__}: {error}). Fix it (--debug shows the "
            f"traceback), or remove it and run the workflow through NVTabular: --uncompiled {kind.__name__}."
        ) from error
    return _checked(lowered, kind)


def _checked(lowered: Any, kind: type) -> Mapping[str, Expression]:
    wrong = type(lowered).__name__
    if isinstance(lowered, Mapping):
        others = [(name, value) for name, value in lowered.items() if not isinstance(value, Expression)]
        if not others:
            return lowered
        name, value = others[0]
        wrong = f"{type(value).__name__} for column {name!r}"
    raise LoweringError(
        f"{kind.__name__}.lower returns {wrong}, expected a mapping from column names to expressions. Make each "
        "expression from the given columns with rankline.workflows.compiler.expressions.apply."
    )


def _fitted(name: str, column: Expression, dtype: str | None, width: int | None) -> Expression:
    try:
        for step in fitting(name, column.dtype, dtype, width):
            column = apply(step, column)
        return column
    except UnfitError as error:  # raised for values in a table; other values are checked per request
        raise LoweringError(
            f"{error} Save the model with a larger input dtype or width, or limit the values in the workflow."
        ) from None


class _Linker:
    """A linker that turns expressions into the indexes, steps and columns of a plan."""

    def __init__(self, outputs: Mapping[str, Expression], *, widths: Mapping[str, int], refuses_missing: bool) -> None:
        sources = {
            name: _source(name, expression, widths.get(name, 1), refuses_missing=refuses_missing)
            for name, expression in outputs.items()
        }
        computed: dict[int, Computed] = {}
        for source in sources.values():
            _gather(source.rows if isinstance(source, Lookup) else source, computed)
        first = [node for node in computed.values() if _is_index_of_input(node)]
        then = [node for node in computed.values() if not _is_index_of_input(node)]
        self._numbers = {id(node): number for number, node in enumerate([*first, *then])}
        self.indexes = tuple(self._index(node) for node in first)
        self.steps = tuple(self._step(node) for node in then)
        self.columns = tuple(self._column(name, source) for name, source in sources.items())

    @property
    def read(self) -> set[str | int]:
        read = {name for part in (*self.indexes, *self.steps) for name in part.inputs}
        return read | {column.source for column in self.columns if isinstance(column, ComputedColumn)}

    def _reference(self, expression: Expression) -> str | int:
        return expression.spec.name if isinstance(expression, Input) else self._numbers[id(expression)]

    def _index(self, node: Computed) -> KeyIndex:
        assert isinstance(node.step, KeyIndex)
        return replace(node.step, input=self._reference(node.inputs[0]))

    def _step(self, node: Computed) -> StepCall | KeyIndex:
        if isinstance(node.step, KeyIndex):
            return self._index(node)
        return StepCall(step=node.step, inputs=tuple(map(self._reference, node.inputs)))

    def _column(self, name: str, source: Expression) -> Column | ComputedColumn:
        width = (source.example.width or ANY_WIDTH) if isinstance(source.example, Lists) else None
        if not isinstance(source, Lookup):
            return ComputedColumn(name=name, source=self._reference(source), dtype=source.dtype.name, width=width)
        index = self._numbers[id(source.rows)]
        if isinstance(source.table, Lists):
            padded = padded_of(source.table)
            return Column(name=name, index=index, values=padded.values, lengths=padded.lengths)
        return Column(name=name, index=index, values=source.table.values, width=width)


def _source(name: str, expression: Expression, width: int, *, refuses_missing: bool) -> Expression:
    if expression.is_string:
        raise LoweringError(f"column {name!r} contains strings, but a model needs numbers. Add Categorify.")
    if not isinstance(expression, Lookup):
        return expression
    table = expression.table
    elements = table.elements if isinstance(table, Lists) else table
    if table.valid is not None or elements.valid is not None:
        if refuses_missing:
            return expression.taken  # a step, which checks each row
        raise LoweringError(
            f"column {name!r} can have missing values. Fill them with FillMissing, NullToEmptyList or Categorify."
        )
    if isinstance(table, Lists):
        lengths = np.diff(table.offsets)
        table = table._replace(width=int(lengths.max(initial=width)))
        expression = Lookup(expression.rows, table)
        if len(lengths) * max(table.width or 1, 1) > _MAX_PADDED_CELLS:
            return expression.taken
    return expression


def _gather(expression: Expression, computed: dict[int, Computed]) -> None:
    """Add a computed column and its dependencies to `computed`, in dependency order."""
    if isinstance(expression, Computed) and id(expression) not in computed:
        for column in expression.inputs:
            _gather(column, computed)
        computed[id(expression)] = expression


def _is_index_of_input(node: Computed) -> bool:
    return isinstance(node.step, KeyIndex) and isinstance(node.inputs[0], Input)
