"""NVTabular operators from what `graph.json` says of them: one function, one line in OPERATORS.

Where the file says less than the operator knew, or says it in a form that its own reader (NVTabular's
`workflow/graph_serializer.py`, of pull request 1896) does not understand, a comment names what is lost and where it is
found.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from workflows.errors import ArtifactError
from workflows.json_fields import NULL, Fields
from workflows.operators import Bucketize
from workflows.saved_functions import named_function
from workflows.upstream import nvt, ops

from nvtabular.ops.add_metadata import AddMetadata  # isort: skip
from merlin.dag.ops.concat_columns import ConcatColumns  # isort: skip
from merlin.dag.ops.selection import SelectionOp  # isort: skip
from merlin.dag.ops.subgraph import Subgraph  # isort: skip
from merlin.schema import Tags  # isort: skip

# A name as it is; and of a class or a `DType`, which the writer puts down as Python shows them.
_DTYPE = re.compile(r"(?:<class '(?:numpy\.)?|DType\(name=')?([<>=|]?[a-z]\w*)(?:'.*)?")


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What an operator is made from.

    Attributes:
        params: what it was constructed with.
        state: what it has learnt.
        directory: its files.
        root: the directory of the workflow, which no file may lie outside of.
        dependencies: nodes that it takes columns from beside its input, already made.
        input_schema: of the node; None where the workflow was not fitted.
        make_graph: makes an output node of a graph in the graph.
    """

    params: Fields
    state: Fields
    directory: Path
    root: Path
    dependencies: list[Any]
    input_schema: Any
    make_graph: Callable[[Fields, Path], Any]

    def files(self, name: str) -> dict[str, str]:
        """Files of the state, by the name that the operator looks them up with.

        Raises:
            ArtifactError: one is missing, or lies elsewhere.
        """
        separator = self.params.take("name_sep", str, default="_")
        files = {}
        for record in self.state.objects(name):
            key = separator.join(record.each("key", str))
            files[key] = str(self._file(record.take("path", str)))
        return files

    def _file(self, name: str) -> Path:
        path, root = self.directory / name, self.root.resolve()
        if not path.exists():
            raise ArtifactError(f"{path.relative_to(self.root) if path.is_relative_to(self.root) else name} is missing")
        if any(not part.resolve().is_relative_to(root) for part in (path, *path.rglob("*"))) or "::" in name:
            raise ArtifactError(f"it names the file {name!r}, which is not in the directory of the workflow")
        return path


def tags_of(names: Sequence[str]) -> list[Any]:
    """Tags as Merlin has them, which the file shows as `Tags.NAME`; other texts are tags of somebody's own."""
    return [Tags[name[5:]] if name.startswith("Tags.") and name[5:] in Tags.__members__ else name for name in names]


def selector_of(fields: Fields) -> Any:
    """Columns by name and tag; all of them where the file has neither, as which it shows "*"."""
    names, tags = fields.each("names", str), tags_of(fields.each("tags", str))
    return nvt.ColumnSelector(names, tags=tags) if names or tags else nvt.ColumnSelector("*")


def grouped(operator: Any, names: list[str]) -> list[Any]:
    """The columns that a node takes, in groups again where its operator takes several together.

    The file has all names in one list. Its own reader leaves them so, and a `Categorify` of combinations, a
    `TargetEncoding` or a `JoinGroupby` of several columns then looks for statistics of each.
    """
    files = getattr(operator, _FILES.get(type(operator), ""), {})
    groups = [_group(operator, key, names) for key in files if key not in names]
    together = [group for group in groups if group]
    alone = [name for name in names if name in files or not any(name in group for group in together)]
    return [*alone, *together]


_FILES = {ops.Categorify: "categories", ops.JoinGroupby: "categories", ops.TargetEncoding: "stats"}


def _group(operator: Any, key: str, names: list[str]) -> tuple[str, ...]:
    """The columns whose common statistics have this name; none, if it has parts that are no columns of the node."""
    if isinstance(operator, ops.Categorify) and operator.encode_type == "joint":
        group = [name for name in names if operator.storage_name.get(name) == key]
    else:  # a file begins with the columns that it is joined on
        columns = pq.ParquetDataset(getattr(operator, _FILES[type(operator)])[key]).schema.names
        group = list(takewhile(names.__contains__, columns))
    return tuple(group) if operator.name_sep.join(group) == key else ()


def _function(fields: Fields, name: str) -> Any:
    """What stands for a function, which the file has as module and name; None where it is null."""
    if fields.take(name, dict, NULL, default=None) is None:
        return None
    function = fields.inner(name)
    return named_function(function.take("module", str), function.take("qualname", str))


def _dtype(fields: Fields, name: str) -> Any:
    """A NumPy type, or None where it is null.

    Most write `out_dtype=np.float32`, which the file has as "<class 'numpy.float32'>"; its own reader fails on that.
    """
    if fields.take(name, dict, NULL, default=None) is None:
        return None
    given = fields.inner(name).take("name", str)
    found = _DTYPE.fullmatch(given)
    try:
        dtype = np.dtype(found[1] if found else given)
    except TypeError:
        dtype = np.dtype("V")
    if dtype.kind not in "biuf":
        raise ArtifactError(f"{name!r} of {fields.where} is {given!r}, expected a dtype of numbers")
    return dtype.type


def _make_selection(saved: Saved) -> Any:
    return SelectionOp(selector_of(saved.params.inner("selector")))


def _make_concat(_saved: Saved) -> Any:
    return ConcatColumns(label="+")


def _make_fill_missing(saved: Saved) -> Any:
    return ops.FillMissing(
        fill_val=saved.params.take("fill_val", float, str, bool, default=0),
        add_binary_cols=saved.params.take("add_binary_cols", bool, default=False),
    )


def _make_fill_median(saved: Saved) -> Any:
    operator = ops.FillMedian(add_binary_cols=saved.params.take("add_binary_cols", bool, default=False))
    operator.medians = _floats(saved, "medians")
    return operator


def _make_normalize(saved: Saved) -> Any:
    operator = ops.Normalize(out_dtype=_dtype(saved.params, "out_dtype"))
    operator.means, operator.stds = _floats(saved, "means"), _floats(saved, "stds")
    return operator


def _make_normalize_min_max(saved: Saved) -> Any:
    operator = ops.NormalizeMinMax(out_dtype=_dtype(saved.params, "out_dtype"))
    operator.mins, operator.maxs = _extremes(saved, "mins"), _extremes(saved, "maxs")
    return operator


def _make_clip(saved: Saved) -> Any:
    return ops.Clip(*(saved.params.take(name, float, NULL, default=None) for name in ("min_value", "max_value")))


def _make_log(_saved: Saved) -> Any:
    return ops.LogOp()


def _make_hash_bucket(saved: Saved) -> Any:
    return ops.HashBucket(saved.params.either("num_buckets", int))


def _make_bucketize(saved: Saved) -> Any:
    """Ours, which can be saved as data again."""
    if isinstance(saved.params.take("boundaries", list, dict), list):
        return Bucketize(saved.params.each("boundaries", float))
    by_column = saved.params.inner("boundaries")
    return Bucketize({name: by_column.each(name, float) for name in saved.params.by_name("boundaries", list)})


def _make_list_slice(saved: Saved) -> Any:
    return ops.ListSlice(
        saved.params.take("start", int),
        end=saved.params.take("end", int, NULL, default=None),
        pad=saved.params.take("pad", bool, default=False),
        pad_value=saved.params.take("pad_value", float, str, default=0.0),
    )


def _make_dropna(_saved: Saved) -> Any:
    return ops.Dropna()


def _make_add_metadata(saved: Saved) -> Any:
    return AddMetadata(
        tags=tags_of(saved.params.each("tags", str)), properties=saved.params.take("properties", dict, default={})
    )


def _make_rename(saved: Saved) -> Any:
    return ops.Rename(
        f=_function(saved.params, "f"),
        postfix=saved.params.take("postfix", str, NULL, default=None),
        name=saved.params.take("name", str, NULL, default=None),
    )


def _make_lambda(saved: Saved) -> Any:
    """Dtype, tags and properties are lost, as the writer looks for attributes of other names; the schema has them.

    Nodes that it depends on are in the file as Python shows them; they are those that the node depends on.
    """
    names = saved.params.each("dependency", str)
    columns = {name for node in saved.dependencies for name in node.output_columns.names}
    if len(names) == len(saved.dependencies):
        names = [name if name in columns else node for name, node in zip(names, saved.dependencies, strict=True)]
    return ops.LambdaOp(
        _function(saved.params, "f"),
        dependency=names or None,
    )


def _make_filter(saved: Saved) -> Any:
    return ops.Filter(_function(saved.params, "f"))


def _make_categorify(saved: Saved) -> Any:
    params = saved.params
    operator = ops.Categorify(
        freq_threshold=params.either("freq_threshold", int, default=0),
        dtype=_dtype(params, "dtype"),
        encode_type=params.take("encode_type", str, default="joint"),
        search_sorted=params.take("search_sorted", bool, default=False),
        num_buckets=params.either("num_buckets", int, NULL, default=None),
        max_size=params.either("max_size", int, NULL, default=0),
        single_table=params.take("single_table", bool, default=False),
        cardinality_memory_limit=params.take("cardinality_memory_limit", str, int, NULL, default=None),
        split_out=params.either("split_out", int, NULL, default=1),
        split_every=params.either("split_every", int, NULL, default=8),
        **_of_statistics(params),
    )
    operator.categories, operator.out_path = saved.files("categories"), str(saved.directory)
    operator.storage_name = saved.state.by_name("storage_name", str)
    return operator


def _make_target_encoding(saved: Saved) -> Any:
    params = saved.params
    operator = ops.TargetEncoding(
        params.each("target_cols", str),
        target_mean=params.either("target_mean", float, NULL, default=None),
        kfold=params.take("kfold", int, default=3),
        fold_seed=params.take("fold_seed", int, NULL, default=42),
        p_smooth=params.take("p_smooth", float, default=20),
        out_col=params.each("out_col", str, list) or None,
        out_dtype=_dtype(params, "out_dtype"),
        split_out=params.either("split_out", int, NULL, default=None),
        split_every=params.either("split_every", int, NULL, default=None),
        drop_folds=params.take("drop_folds", bool, default=True),
        **_of_statistics(params),
    )
    if len(saved.dependencies) == 1:  # its own reader makes another node, which does not follow when inputs are removed
        operator.target = operator.dependency = saved.dependencies[0]
    operator.stats, operator.out_path = saved.files("stats"), str(saved.directory)
    operator.means = _floats(saved, "means")
    return operator


def _make_join_groupby(saved: Saved) -> Any:
    params = saved.params
    given: Any = params.each("cont_cols", str)
    if params.take("cont_cols", list, NULL, default=None) is None and saved.dependencies:
        given = saved.dependencies[0]  # it was a node, which the file has as null; its own reader knows no columns then
    operator = ops.JoinGroupby(
        cont_cols=given,
        stats=tuple(params.each("stats", str)) or ("count",),
        split_out=params.either("split_out", int, NULL, default=None),
        split_every=params.either("split_every", int, NULL, default=None),
        **_of_statistics(params),
    )
    operator.categories, operator.out_path = saved.files("categories"), str(saved.directory)
    operator.storage_name = saved.state.by_name("storage_name", str)
    return operator


def _make_subgraph(saved: Saved) -> Any:
    output_node = saved.make_graph(saved.params.inner("inner_graph"), saved.directory)
    return Subgraph(saved.params.take("name", str), output_node, loop_until=_function(saved.params, "loop_until"))


def _of_statistics(params: Fields) -> dict[str, Any]:
    return {
        "cat_cache": params.take("cat_cache", str, default="host"),
        "on_host": params.take("on_host", bool, default=True),
        "name_sep": params.take("name_sep", str, default="_"),
    }


def _floats(saved: Saved, name: str) -> dict[str, float]:
    return {column: float(value) for column, value in saved.state.by_name(name, float).items()}


def _extremes(saved: Saved, name: str) -> dict[str, Any]:
    """Numbers of the type that all columns of the operator have in common, as which NVTabular learns them.

    The file has Python's, and NumPy computes with those in the type of the column: in float32, where a column of
    float32 was normalized together with one of float64, and was computed in float64.
    """
    values = _floats(saved, name)
    dtypes = [np.dtype(schema.dtype.to_numpy) for schema in (saved.input_schema or ())]
    common = np.result_type(*dtypes) if dtypes and all(dtype.kind in "iuf" for dtype in dtypes) else np.dtype(float)
    return {column: _exact(value, common.type) for column, value in values.items()}


def _exact(value: float, kind: Any) -> Any:
    try:
        made = kind(value)
    except (OverflowError, ValueError):
        return np.float64(value)
    return made if float(made) == value else np.float64(value)


OPERATORS: dict[str, Callable[[Saved], Any]] = {
    "merlin.dag.ops.concat_columns.ConcatColumns": _make_concat,
    "merlin.dag.ops.selection.SelectionOp": _make_selection,
    "merlin.dag.ops.subgraph.Subgraph": _make_subgraph,
    "merlin.dag.ops.udf.UDF": _make_lambda,
    "nvtabular.ops.add_metadata.AddMetadata": _make_add_metadata,
    "nvtabular.ops.bucketize.Bucketize": _make_bucketize,
    "nvtabular.ops.categorify.Categorify": _make_categorify,
    "nvtabular.ops.clip.Clip": _make_clip,
    "nvtabular.ops.dropna.Dropna": _make_dropna,
    "nvtabular.ops.fill.FillMedian": _make_fill_median,
    "nvtabular.ops.fill.FillMissing": _make_fill_missing,
    "nvtabular.ops.filter.Filter": _make_filter,
    "nvtabular.ops.hash_bucket.HashBucket": _make_hash_bucket,
    "nvtabular.ops.join_groupby.JoinGroupby": _make_join_groupby,
    "nvtabular.ops.lambdaop.LambdaOp": _make_lambda,
    "nvtabular.ops.list_slice.ListSlice": _make_list_slice,
    "nvtabular.ops.logop.LogOp": _make_log,
    "nvtabular.ops.normalize.Normalize": _make_normalize,
    "nvtabular.ops.normalize.NormalizeMinMax": _make_normalize_min_max,
    "nvtabular.ops.rename.Rename": _make_rename,
    "nvtabular.ops.target_encoding.TargetEncoding": _make_target_encoding,
}
"""Class, as the file names it, → what makes an operator of it. Subclasses are saved as the class that they extend."""
