"""Lowerings of NVTabular operators to a `TransformPlan`. Each operator has one function and one entry in `LOWERINGS`.

A lowering takes the operator, the selected columns and their expressions, and returns expressions of the output
columns. It calls `apply` with steps of `rankline.workflows.plan.steps`, or `find` and `look_up` for keys, and folds as
much as possible into tables at compile time. Operator classes of other packages define a method `lower` instead.
"""

from rankline.workflows.compiler.expressions import Lowering
from rankline.workflows.compiler.operators import categorical, continuous, joins, lists
from rankline.workflows.nvt import operators as own
from rankline.workflows.nvt.compat import ops  # first, so that the imports below are quiet

from nvtabular.ops.add_metadata import AddMetadata  # isort: skip

from merlin.dag.ops.concat_columns import ConcatColumns  # isort: skip
from merlin.dag.ops.grouping import GroupingOp  # isort: skip
from merlin.dag.ops.selection import SelectionOp  # isort: skip
from merlin.dag.ops.subset_columns import SubsetColumns  # isort: skip
from merlin.dag.ops.subtraction import SubtractionOp  # isort: skip

_UNCHANGED = (
    SelectionOp, SubsetColumns, SubtractionOp, ConcatColumns, GroupingOp, AddMetadata, ops.AddTags, ops.AddProperties,
    ops.TagAsUserID, ops.TagAsItemID, ops.TagAsUserFeatures, ops.TagAsItemFeatures, ops.ValueCount, ops.DataStats,
    ops.DropLowCardinality,
)  # fmt: skip
"""Operators that only select, tag or measure columns."""
LOWERINGS: dict[type, Lowering] = {
    **dict.fromkeys(_UNCHANGED, lambda _op, _selector, columns: columns),
    ops.Rename: lambda op, selector, columns: {n: columns[o] for n, (o,) in op.column_mapping(selector).items()},
    ops.Categorify: categorical.lower_categorify,
    own.Categorify: categorical.lower_categorify,
    own.HashedCategorify: categorical.lower_categorify,
    own.OrderedCategorify: categorical.lower_categorify,
    own.SharedCategorify: categorical.lower_categorify,
    own.StableHashBucket: categorical.lower_stable_hash_bucket,
    own.HashShare: categorical.lower_stable_hash_bucket,
    own.EmptyToNull: categorical.lower_empty_to_null,
    own.HexToInt: categorical.lower_hex_to_int,
    own.KnownIds: categorical.lower_known_ids,
    own.StableHashedCross: categorical.lower_stable_hashed_cross,
    ops.FillMissing: continuous.lower_fill_missing,
    ops.FillMedian: continuous.lower_fill_median,
    own.Finite: continuous.lower_finite,
    ops.Clip: continuous.lower_clip,
    ops.LogOp: continuous.lower_log,
    ops.Normalize: continuous.lower_normalize,
    ops.NormalizeMinMax: continuous.lower_normalize_min_max,
    ops.Bucketize: continuous.lower_bucketize,
    own.Bucketize: continuous.lower_bucketize,
    ops.ReduceDtypeSize: continuous.lower_reduce_dtype_size,
    own.DateParts: continuous.lower_date_parts,
    ops.JoinExternal: joins.lower_join_external,
    ops.JoinGroupby: joins.lower_join_groupby,
    ops.TargetEncoding: joins.lower_target_encoding,
    own.ItemAttributes: joins.lower_item_attributes,
    own.NullToEmptyList: lists.lower_null_to_empty_list,
    ops.ListSlice: lists.lower_list_slice,
    own.PaddedListSlice: lists.lower_padded_list_slice,
    own.SameLengths: lists.lower_same_lengths,
    own.VectorElements: lists.lower_vector_elements,
}

_HASHED_WITH_POSITION = "hashes the row's position along with the value on a CPU, so equal values get different ids"
_DROPS_ROWS = "drops rows, but a response needs one row per request row. Filter the data before preparing it"

# Operators that cannot process requests, with the reason and the remedy.
REFUSED: dict[type, str] = {
    ops.HashBucket: f"{_HASHED_WITH_POSITION}. Use rankline.workflows.nvt.operators.StableHashBucket",
    ops.HashedCross: f"{_HASHED_WITH_POSITION}. Use rankline.workflows.nvt.operators.StableHashedCross",
    ops.Filter: _DROPS_ROWS,
    ops.Dropna: f"{_DROPS_ROWS}, or use FillMissing",
    ops.Groupby: "merges many rows into one. Group the data before preparing it, and send lists in requests",
    ops.DifferenceLag: "compares neighboring rows, which are unrelated in a request. Compute the values "
    "before preparing the data, and send them in requests",
    ops.LambdaOp: "is a Python function and cannot be compiled. Rewrite it as an operator class with a "
    "method `lower`, leave its columns out, or run the workflow through NVTabular: --uncompiled LambdaOp",
}
