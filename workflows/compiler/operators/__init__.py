"""The lowerings of NVTabular operators to a `TransformPlan`: one function and one line in LOWERINGS each.

A lowering takes the operator, the selected columns and their expressions, and returns expressions of the output
columns. It calls `apply` with steps of `rankline.workflows.plan.steps`, or `find` and `look_up` for keys, and folds as
much as possible into tables at compile time. Operator classes of other packages define a method `lower` instead.
"""

from rankline.workflows.compiler.expressions import Lowering
from rankline.workflows.compiler.operators.categorical import (
    lower_categorify,
    lower_empty_to_null,
    lower_hex_to_int,
    lower_stable_hash_bucket,
    lower_stable_hashed_cross,
)
from rankline.workflows.compiler.operators.continuous import (
    lower_bucketize,
    lower_clip,
    lower_fill_median,
    lower_fill_missing,
    lower_finite,
    lower_log,
    lower_normalize,
    lower_normalize_min_max,
    lower_reduce_dtype_size,
)
from rankline.workflows.compiler.operators.dates import lower_date_parts
from rankline.workflows.compiler.operators.graph import lower_rename, lower_unchanged
from rankline.workflows.compiler.operators.item_attributes import lower_item_attributes
from rankline.workflows.compiler.operators.joins import (
    lower_join_external,
    lower_join_groupby,
    lower_target_encoding,
)
from rankline.workflows.compiler.operators.known_ids import lower_known_ids
from rankline.workflows.compiler.operators.lists import (
    lower_list_slice,
    lower_null_to_empty_list,
    lower_padded_list_slice,
    lower_same_lengths,
    lower_vector_elements,
)
from rankline.workflows.nvt.compat import ops  # first, so that the imports below are quiet
from rankline.workflows.nvt.operators import (
    Bucketize,
    Categorify,
    DateParts,
    EmptyToNull,
    Finite,
    HashedCategorify,
    HashShare,
    HexToInt,
    ItemAttributes,
    KnownIds,
    NullToEmptyList,
    OrderedCategorify,
    PaddedListSlice,
    SameLengths,
    SharedCategorify,
    StableHashBucket,
    StableHashedCross,
    VectorElements,
)

from nvtabular.ops.add_metadata import AddMetadata  # isort: skip

from merlin.dag.ops.concat_columns import ConcatColumns  # isort: skip
from merlin.dag.ops.grouping import GroupingOp  # isort: skip
from merlin.dag.ops.selection import SelectionOp  # isort: skip
from merlin.dag.ops.subset_columns import SubsetColumns  # isort: skip
from merlin.dag.ops.subtraction import SubtractionOp  # isort: skip

LOWERINGS: dict[type, Lowering] = {
    SelectionOp: lower_unchanged,
    SubsetColumns: lower_unchanged,
    SubtractionOp: lower_unchanged,
    ConcatColumns: lower_unchanged,
    GroupingOp: lower_unchanged,
    AddMetadata: lower_unchanged,
    ops.AddTags: lower_unchanged,
    ops.AddProperties: lower_unchanged,
    ops.TagAsUserID: lower_unchanged,
    ops.TagAsItemID: lower_unchanged,
    ops.TagAsUserFeatures: lower_unchanged,
    ops.TagAsItemFeatures: lower_unchanged,
    ops.ValueCount: lower_unchanged,
    ops.DataStats: lower_unchanged,
    ops.DropLowCardinality: lower_unchanged,
    ops.Rename: lower_rename,
    ops.Categorify: lower_categorify,
    Categorify: lower_categorify,
    HashedCategorify: lower_categorify,
    OrderedCategorify: lower_categorify,
    SharedCategorify: lower_categorify,
    StableHashBucket: lower_stable_hash_bucket,
    HashShare: lower_stable_hash_bucket,
    EmptyToNull: lower_empty_to_null,
    HexToInt: lower_hex_to_int,
    DateParts: lower_date_parts,
    VectorElements: lower_vector_elements,
    StableHashedCross: lower_stable_hashed_cross,
    ops.FillMissing: lower_fill_missing,
    ops.FillMedian: lower_fill_median,
    Finite: lower_finite,
    ops.Clip: lower_clip,
    ops.LogOp: lower_log,
    ops.Normalize: lower_normalize,
    ops.NormalizeMinMax: lower_normalize_min_max,
    ops.Bucketize: lower_bucketize,
    Bucketize: lower_bucketize,
    ops.ReduceDtypeSize: lower_reduce_dtype_size,
    ops.JoinExternal: lower_join_external,
    ops.JoinGroupby: lower_join_groupby,
    ops.TargetEncoding: lower_target_encoding,
    ItemAttributes: lower_item_attributes,
    KnownIds: lower_known_ids,
    NullToEmptyList: lower_null_to_empty_list,
    ops.ListSlice: lower_list_slice,
    PaddedListSlice: lower_padded_list_slice,
    SameLengths: lower_same_lengths,
}

_HASHED_WITH_POSITION = "hashes the row's position together with the value on a CPU, so no two rows agree"
_DROPS_ROWS = "drops rows, and a request needs all of its own back. Filter the data before it is prepared"

# Operators that cannot process requests, with the reason and the remedy.
REFUSED: dict[type, str] = {
    ops.HashBucket: f"{_HASHED_WITH_POSITION}. Use rankline.workflows.nvt.operators.StableHashBucket",
    ops.HashedCross: f"{_HASHED_WITH_POSITION}. Use rankline.workflows.nvt.operators.StableHashedCross",
    ops.Filter: _DROPS_ROWS,
    ops.Dropna: f"{_DROPS_ROWS}, or use FillMissing",
    ops.Groupby: "makes one row of many. Group the data before it is prepared, and send lists",
    ops.DifferenceLag: "compares neighbouring rows, which in a request have nothing to do with each other. "
    "Compute it before the data is prepared, and send it",
    ops.LambdaOp: "is a Python function, which has no compiled form. Write it as an operator class with a "
    "method `lower`, leave its columns out, or run the workflow through NVTabular: --uncompiled LambdaOp",
}
