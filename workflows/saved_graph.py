"""Workflows as NVTabular saves them since 23.8: nodes in `graph.json`, and Parquet files below `artifacts/`.

The format is that of NVTabular's main branch, `workflow/graph_serializer.py` of pull request 1896, with format_version
1. What is made of it are nodes and operators of NVTabular 23.8. The file is plain data, and nothing that it names is
imported or called: operators are those of a table (`workflows/saved_operators.py`), functions those that an installed
package names (`workflows/saved_functions.py`).
"""

import json
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from workflows.errors import ArtifactError
from workflows.json_fields import NULL, Fields
from workflows.saved_functions import say_whose_they_are
from workflows.saved_operators import OPERATORS, Saved, grouped, tags_of
from workflows.upstream import nvt

import merlin.dtypes as md  # isort: skip
from merlin.dag import Node  # isort: skip
from merlin.dag.ops.stat_operator import StatOperator  # isort: skip
from merlin.dag.ops.subgraph import Subgraph  # isort: skip
from merlin.dtypes.base import ElementType, ElementUnit  # isort: skip
from merlin.schema import ColumnSchema, Schema  # isort: skip

GRAPH_FILE = "graph.json"

# NVTabular and we walk a graph from its output along every path, one call within the other.
_MOST_PATHS = 100_000
_MOST_LEVELS = 150


def load_graph(directory: Path) -> nvt.Workflow:
    """The workflow of a directory with a `graph.json`.

    Raises:
        ArtifactError: the file holds what no saved workflow has, or names files that are not there.
        FileNotFoundError: there is no such file.
    """
    try:
        document = Fields(json.loads((directory / GRAPH_FILE).read_text(encoding="utf-8")), "the file")
        version = document.take("format_version", int, default=1)
        if version != 1:
            raise ArtifactError(f"its format_version is {version}, expected 1: a later NVTabular has saved it")
        return nvt.Workflow(_Reader(directory).read(document, directory))
    except RecursionError:
        raise ArtifactError("it holds objects in objects without end") from None


class _Reader:
    """Makes the nodes of a graph and of the graphs in it.

    Args:
        root: the directory of the workflow.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._extents: dict[int, tuple[int, int]] = {}  # number of paths and of levels, from a node on

    def read(self, graph: Fields, directory: Path) -> Any:
        """The output node of a graph whose files lie in a directory."""
        given = graph.objects("nodes")
        records = {record.take("id", int): record for record in given}
        if len(records) < len(given):
            raise ArtifactError(f"{graph.where} has several nodes with one id")
        output = graph.take("output_node_id", int)
        if output not in records:
            raise ArtifactError(f"{graph.where} has no node {output}, which is to be its output")
        nodes: dict[int, Any] = {}
        for number in _in_order(records):
            record = records[number]
            record.where = f"node {number} ({record.take('op_class', str, NULL, default=None)})"
            nodes[number] = self._node(record, nodes, directory / "artifacts" / f"node_{number}")
        return nodes[output]

    def _node(self, record: Fields, nodes: dict[int, Any], directory: Path) -> Any:
        node = Node()
        node.input_schema, node.output_schema = (_schema(record, name) for name in ("input_schema", "output_schema"))
        for number in record.each("parent_ids", int):
            node.add_parent(nodes[number])
        for number in record.each("dependency_ids", int):
            node.add_dependency(nodes[number])
        node.op = self._operator(record, node, directory)
        if record.take("selector", dict, NULL, default=None) is not None:
            names = record.inner("selector").each("names", str)
            node.selector = nvt.ColumnSelector(grouped(node.op, names))
        self._check_extent(node, record.where)
        say_whose_they_are(node)
        return node

    def _operator(self, record: Fields, node: Any, directory: Path) -> Any:
        make = OPERATORS.get(record.take("op_class", str, NULL))
        if make is None:
            available = ", ".join(sorted({name.rpartition(".")[2] for name in OPERATORS}))
            raise ArtifactError(f"{record.where} is of no known operator class, expected one of {available}")
        saved = Saved(
            params=record.inner("op_params"),
            state=record.inner("op_state"),
            directory=directory,
            root=self._root,
            dependencies=node.dependencies,
            input_schema=node.input_schema,
            make_graph=self.read,
        )
        try:
            operator = make(saved)
        except (TypeError, ValueError) as error:  # of NVTabular's own constructors
            raise ArtifactError(f"{record.where} cannot be made: {error}") from None
        if isinstance(operator, StatOperator):
            operator.fitted = True
        return operator

    def _check_extent(self, node: Any, where: str) -> None:
        inner = [node.op.graph.output_node] if isinstance(node.op, Subgraph) else []
        extents = [self._extents[id(other)] for other in (*node.parents_with_dependencies, *inner)]
        num_paths = max(1, sum(paths for paths, _ in extents))
        num_levels = 1 + max((levels for _, levels in extents), default=0)
        if num_paths > _MOST_PATHS or num_levels > _MOST_LEVELS:
            raise ArtifactError(
                f"{where} has {num_paths} paths of up to {num_levels} nodes to it, expected at most {_MOST_PATHS} of "
                f"{_MOST_LEVELS}"
            )
        self._extents[id(node)] = num_paths, num_levels


def _in_order(records: dict[int, Fields]) -> list[int]:
    """Numbers of the nodes, each after those that it takes columns from.

    They are not numbered so: the writer walks breadth-first from the output, so where a column goes there along two
    ways of different length, a node may come before what it takes. Its own reader then fails with a KeyError.
    """
    sources = {
        number: [*record.each("parent_ids", int), *record.each("dependency_ids", int)]
        for number, record in records.items()
    }
    for number, others in sources.items():
        if missing := [other for other in others if other not in records]:
            raise ArtifactError(f"node {number} takes columns of node {missing[0]}, which the file does not have")
    try:
        return list(TopologicalSorter(sources).static_order())
    except CycleError as error:
        raise ArtifactError(f"its graph goes round in circles: nodes {error.args[1]}") from None


def _schema(record: Fields, name: str) -> Any:
    if record.take(name, list, NULL, default=None) is None:
        return None
    return Schema([_column(column) for column in record.objects(name)])


def _column(column: Fields) -> Any:
    name, tags = column.take("name", str), tags_of(column.each("tags", str))
    properties = column.take("properties", dict, default={})
    try:
        dtype = _dtype(column)
        # The shape apart: a schema made of a dtype forgets that of the dtype, as its own reader does.
        return ColumnSchema(name, tags=tags, properties=properties, dtype=dtype, dims=dtype.shape.as_tuple)
    except (TypeError, ValueError, AttributeError) as error:  # of Merlin's own checks
        raise ArtifactError(f"column {name!r} of {column.where} has no such schema: {error}") from None


def _dtype(column: Fields) -> Any:
    given = column.take("dtype", dict, str, NULL, default=None)
    if not isinstance(given, dict):
        return md.dtype(given or md.unknown)
    fields = column.inner("dtype")
    name, kind = fields.take("name", str), fields.take("element_type", str, NULL, default=None)
    unit = fields.take("element_unit", str, NULL, default=None)
    shape = [tuple(dim.take(end, int, NULL) for end in ("min", "max")) for dim in fields.objects("shape")]
    if kind is None:  # of a NumPy dtype, of which the file has the name alone
        return md.dtype(name)
    return md.DType(
        name=name,
        element_type=ElementType(kind),
        element_size=fields.take("element_size", int, NULL, default=None),
        element_unit=None if unit is None else ElementUnit(unit),
        signed=fields.take("signed", bool, NULL, default=None),
        shape=md.Shape(tuple(shape) or None),
    )
