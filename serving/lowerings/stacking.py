"""Finds output columns that come from raw ones by the same steps, and makes `Stack`s of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.lowerings.expressions import Computed, Expression, Input, Lookup
from serving.plan import KeyIndex, Stack
from serving.plan.columns import Vector
from serving.plan.stacks import StackedArithmetic, StackedBucket, StackedLookup
from serving.plan.steps import Arithmetic, Bucket, Cast, Clip, Fill, Finite, HexToInt, Step

_FEWEST = 4  # columns, from which on a stack is worth its arrays of constants


@dataclass(frozen=True)
class _Lookup:
    """A table behind an index."""

    index: KeyIndex
    table: Vector


@dataclass(frozen=True)
class _Chain:
    """The way of one column from raw to ready."""

    start: Input
    links: tuple[Step | _Lookup, ...]
    signature: tuple[Any, ...]


def stack_columns(
    outputs: Mapping[str, Expression], candidates: Collection[str] = ()
) -> tuple[tuple[Stack, ...], dict[str, tuple[int, int]]]:
    """Stack what can be stacked.

    Args:
        outputs: name → expression of each output column.
        candidates: raw columns that may hold several values per row; they are not stacked with others.

    Returns:
        The stacks, and name → number of the stack and of the row in it.
    """
    groups: dict[tuple[Any, ...], dict[str, _Chain]] = {}
    for name, expression in outputs.items():
        if chain := _chain_of(expression):
            is_candidate = chain.start.spec.name in candidates
            groups.setdefault((is_candidate, *chain.signature), {})[name] = chain
    stacks: list[Stack] = []
    places: dict[str, tuple[int, int]] = {}
    for group in groups.values():
        if len(group) >= _FEWEST:
            places.update({name: (len(stacks), row) for row, name in enumerate(group)})
            stacks.append(_stack_of(tuple(group.values())))
    return tuple(stacks), places


def _chain_of(expression: Expression) -> _Chain | None:
    """The chain of a column; None if it cannot be part of a stack."""
    links: list[Step | _Lookup] = []
    signature: list[Any] = []
    if isinstance(expression, Lookup):
        rows, table = expression.rows, expression.table
        if not (isinstance(rows, Computed) and isinstance(rows.step, KeyIndex) and isinstance(table, Vector)):
            return None
        if rows.step.strings is not None or table.valid is not None:
            return None
        if rows.step.hashes is None and rows.inputs[0].dtype.kind != "f":
            return None  # whole numbers that are dense are found by one call each; floats are so by chance only
        links.append(_Lookup(rows.step.hashed(), table))
        signature.append((_Lookup, table.values.dtype))
        (expression,) = rows.inputs
    while isinstance(expression, Computed):
        if len(expression.inputs) > 1 or (part := _signature_of(expression)) is None:
            return None
        links.append(expression.step)  # type: ignore[arg-type]  # an index has no signature
        signature.append(part)
        (expression,) = expression.inputs
    if not isinstance(expression, Input) or expression.is_list or not links:
        return None
    if expression.is_string and not isinstance(links[-1], HexToInt):
        return None
    return _Chain(expression, tuple(reversed(links)), (expression.dtype, *reversed(signature)))


def _signature_of(node: Computed) -> Any:
    """What must be the same for columns to take this step together; None if they cannot."""
    step, (column,) = node.step, node.inputs
    if isinstance(step, HexToInt | Finite | Fill | Clip):
        return step
    if isinstance(step, Bucket):
        return Bucket
    if isinstance(step, Cast):
        # Where one integer of a stack is missing all are float64 on their way, so the last bits might differ.
        return step if column.dtype.kind == "f" or _is_filled(column) or step.dtype == "float64" else None
    if isinstance(step, Arithmetic) and column.dtype.kind == "f":
        if step.operand is None:
            return step
        # NumPy below 2 computes in float64 with what the column's dtype cannot hold.
        return (step.function, column.dtype) if abs(step.operand) <= np.finfo(column.dtype).max else None
    return None


def _is_filled(column: Expression) -> bool:
    """Whether nothing can be missing, on the way from a raw column by steps that keep what is missing."""
    while isinstance(column, Computed) and not isinstance(column.step, Fill):
        column = column.inputs[0]
    return isinstance(column, Computed)


def _stack_of(chains: Sequence[_Chain]) -> Stack:
    parts = chains[0].signature[1:]
    links = zip(*(chain.links for chain in chains), strict=True)
    return Stack(
        inputs=tuple(chain.start.spec.name for chain in chains),
        steps=tuple(_together(of_columns, part) for of_columns, part in zip(links, parts, strict=True)),
    )


def _together(links: Sequence[Any], part: Any) -> Step:
    """One step in place of one per column, which share this part of their signature."""
    if isinstance(part, Step):
        return part
    if part is Bucket:
        return StackedBucket(num_buckets=np.array([[link.num_buckets] for link in links], dtype=np.uint64))
    if part[0] is _Lookup:
        return StackedLookup.build([link.index for link in links], [link.table.values for link in links])
    function, dtype = part
    return StackedArithmetic(function=function, operands=np.array([[link.operand] for link in links], dtype=dtype))
