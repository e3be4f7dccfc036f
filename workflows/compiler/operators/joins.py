"""Lowerings of left joins and group statistics to table lookups."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from nvtabular.ops.join_groupby import AGG_DTYPES

from rankline.workflows.compiler.expressions import (
    Columns,
    Expression,
    KeyMatch,
    apply,
    cast,
    column_of,
    find,
    unsupported,
)
from rankline.workflows.core.errors import LoweringError
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.io.vocabulary_files import read_vocabulary
from rankline.workflows.nvt.operators import ItemAttributes
from rankline.workflows.plan.columns import Vector
from rankline.workflows.plan.steps import Fill


def lower_join_external(op: ops.JoinExternal, _selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    """Compile a left join on unique keys. Unknown keys yield missing values."""
    on, on_ext = _as_list(op.on), _as_list(op.on_ext)
    if op.how != "left":
        raise unsupported(
            op, f"how={op.how!r}", "drops rows, but a response needs one row per request row. Use a left join."
        )
    table: pd.DataFrame = op._ext
    joined = [name for name in table.columns if name not in on_ext or name not in on]
    if twice := [name for name in joined if name in columns]:
        raise LoweringError(f"JoinExternal adds columns {twice}, which already exist. Rename them or leave them out.")
    found = _find(op, columns, on, table[on_ext])
    return {**columns, **{name: found.look_up(column_of(table[name])) for name in joined}}


def lower_join_groupby(op: ops.JoinGroupby, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    """Look up group statistics. Unknown groups get a count of 0, whereas NVTabular raises an error on a CPU."""
    lowered: dict[str, Any] = {}
    for group in _groups(selector):
        name = op.name_sep.join(group)
        stats = read_vocabulary(op.categories[op.storage_name.get(name, name)], group)
        found = _find(op, columns, group, stats[group])
        for stat in (stat for stat in stats.columns if stat not in group):
            lookup = found.look_up(column_of(stats[stat]))
            if stat.endswith(f"{op.name_sep}count"):
                lookup = apply(Fill(value=0), lookup)  # type: ignore[assignment]
            dtypes = [dtype for agg, dtype in AGG_DTYPES.items() if stat.endswith(op.name_sep + agg)]
            lowered[stat] = cast(lookup, dtypes[0]) if dtypes else lookup
    return lowered


def lower_target_encoding(op: ops.TargetEncoding, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    """Look up the smoothed target mean of each group over all folds, or the global mean for unknown groups.

    NVTabular's `transform` always uses the statistics of a random fold, by the row's position, even where there is no
    target to leak. Its own documentation requires global statistics for serving, so this lowering uses them.
    """
    if op.out_col is not None:
        raise unsupported(op, f"out_col={op.out_col}", "does not match NVTabular's schema. Use Rename instead.")
    lowered: dict[str, Any] = {}
    for group in _groups(selector):
        key = op.name_sep.join(group)
        stats = read_vocabulary(op.stats[key], group)
        _check_are_sums(op, group, key, stats)
        found = _find(op, columns, group, stats[group])
        count, *sums = (stats.iloc[:, len(group) + i] for i in range(1 + len(op.means)))
        for (target, mean), total in zip(op.means.items(), sums, strict=True):
            encoded = (total + op.p_smooth * mean) / (count + op.p_smooth)
            lookup = apply(Fill(value=mean), found.look_up(Vector(encoded.to_numpy())))
            for dtype in (op.out_dtype, op.output_dtype):
                lookup = lookup if dtype is None else cast(lookup, dtype)
            lowered[f"TE_{key}_{target}"] = lookup
    return lowered


def _check_are_sums(op: ops.TargetEncoding, group: list[str], key: str, stats: pd.DataFrame) -> None:
    """Check that no `JoinGroupby` on the same columns has overwritten the statistics file."""
    names = ["count", *(f"{target}{op.name_sep}sum" for target in op.means)]
    if list(stats.columns[len(group) :][: len(names)]) != [f"{key}{op.name_sep}{name}" for name in names]:
        raise LoweringError(
            f"TargetEncoding on {', '.join(map(repr, group))} reads the statistics of another operator, because "
            "both write to the same file. Rename the column before one of these operators."
        )


def _find(op: Any, columns: Columns, on: Sequence[str], keys: pd.DataFrame) -> KeyMatch:
    what = f"{type(op).__name__} on {', '.join(map(repr, on))}"
    if lists := [name for name in on if columns[name].is_list]:
        raise LoweringError(f"{what}: {lists} contain lists, expected one key per row.")
    if not len(keys):
        raise LoweringError(f"{what}: the table to join has no rows. Provide a table with at least one row.")
    return find([columns[name] for name in on], [column_of(keys[name]) for name in keys.columns], what=what)  # type: ignore[misc]


def _groups(selector: nvt.ColumnSelector) -> list[list[str]]:
    return [[group] if isinstance(group, str) else list(group) for group in selector.grouped_names]


def _as_list(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def lower_item_attributes(op: ItemAttributes, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    """Look up item attributes, matching each item only once for all of its attributes.

    Raises:
        LoweringError: items are strings and known items are numbers, or vice versa.
    """
    keys = column_of(op.items[op.key])
    assert isinstance(keys, Vector)
    lowered: dict[str, Expression] = {}
    for name in selector.names:
        found = find([columns[name]], [keys], what=f"ItemAttributes on {name!r}")
        for attribute, output in op.outputs(name).items():
            lookup = found.look_up(column_of(op.items[attribute]))
            lowered[output] = apply(Fill(value=op.fill[attribute]), lookup)
    return lowered
