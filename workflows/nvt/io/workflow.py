"""Save and load NVTabular workflows without running code from the file.

NVTabular 23.8 saves a workflow as a pickle, which could call anything. Rankline reads the pickle as data and builds the
objects by its own rules (`workflows/nvt/io/restore.py`); a loaded workflow reads only the files next to it. Installed
packages, not the file, determine which operator classes may be imported: they name one per entry point in the group
`rankline.operators`, such as `log_price = "shop.operators:LogPrice"`.
"""

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import cloudpickle

from rankline.workflows.core.errors import ArtifactError, ConfigError, in_short
from rankline.workflows.core.validation import MAX_PADDED_LENGTH
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.io.functions import label_unloaded_functions
from rankline.workflows.nvt.io.pickle_reader import parse_pickle
from rankline.workflows.nvt.io.restore import GROUP, check_extent, has_rule, make_parts
from rankline.workflows.nvt.io.vocabulary_files import check_vocabulary
from rankline.workflows.storage.untrusted import read_regular

from merlin.dag import Graph, Node  # isort: skip
from merlin.dag.ops.subgraph import Subgraph  # isort: skip
from nvtabular.ops import StatOperator  # isort: skip

_PICKLE, _METADATA = "workflow.pkl", "metadata.json"
_SAVED_IN = "/workflow"
_VOCABULARY = "cat_path"
_MAX_PICKLE_BYTES = 256 << 20  # takes a minute to read
_MAX_METADATA_BYTES = 1 << 20
# Operator → attribute with its files by column.
_FILES = {ops.Categorify: "categories", ops.JoinGroupby: "categories", ops.TargetEncoding: "stats"}
# Oldest versions whose pickles are supported; some pickles of older versions load too.
_OLDEST = {"nvtabular": "23.8", "pandas": "1.5"}
# NVTabular and Rankline traverse a graph from its output along every path.
_MAX_PATHS = 100_000


def save_workflow(workflow: nvt.Workflow, directory: Path) -> None:
    """Save a workflow in NVTabular's format: `workflow.pkl`, `metadata.json` and the vocabularies.

    The same workflow gives identical bytes at any time and in any directory. The workflow in memory keeps using its own
    vocabularies, whereas NVTabular would switch to the saved ones, so `directory` may be moved or deleted.
    """
    operators = _with_statistics(workflow)
    before = [dict(vars(operator)) for operator in operators]
    try:
        workflow.save(str(directory))
        for operator in operators:
            _rename_files(operator, _SAVED_IN, lambda file: _SAVED_IN + file.removeprefix(str(directory)))
        _name_vocabularies_alike(workflow)
        (directory / _PICKLE).write_bytes(cloudpickle.dumps(workflow))
        metadata = json.loads((directory / _METADATA).read_text(encoding="utf-8"))
        (directory / _METADATA).write_text(json.dumps({**metadata, "generated_timestamp": 0}), encoding="utf-8")
    finally:
        for operator, attributes in zip(operators, before, strict=True):
            vars(operator).update(attributes)


def _rename_files(operator: Any, directory: str, renamed: Callable[[str], str]) -> None:
    """Set the directory of an operator that has files, and rename them."""
    for kind, attribute in _FILES.items():
        if isinstance(operator, kind):
            files = getattr(operator, attribute)
            setattr(operator, attribute, {key: renamed(files[key]) for key in files})
            operator.out_path = directory
    if isinstance(operator, ops.Categorify):  # NVTabular would otherwise move vocabularies that were passed in
        operator.vocabs = {key: operator.categories[key] for key in operator.vocabs}


def _name_vocabularies_alike(workflow: nvt.Workflow) -> None:
    """Replace directories with `_SAVED_IN` in vocabulary paths that Categorify records in schemas but nothing reads."""
    for node in _nodes(workflow.graph):
        for schema in (node.input_schema, node.output_schema):
            for column in schema or ():
                if path := column.properties.get(_VOCABULARY):
                    column.properties[_VOCABULARY] = f"{_SAVED_IN}/categories/{Path(path).name}"


def check_loadable(workflow: nvt.Workflow) -> None:
    """Check before fitting that `load_workflow` can restore every operator of a workflow."""
    for kind in {type(node.op) for node in _nodes(workflow.graph)}:
        if not has_rule(kind.__module__, kind.__qualname__):
            raise ConfigError(
                f"a saved workflow that uses {kind.__module__}.{kind.__qualname__} could not be loaded. Register the "
                f"class in the entry-point group {GROUP} of an installed package: {kind.__name__.lower()} = "
                f'"{kind.__module__}:{kind.__qualname__}".'
            )


def load_workflow(directory: Path) -> nvt.Workflow:
    """Load a saved NVTabular workflow without running code from the file.

    Raises:
        ArtifactError: the workflow is missing or damaged, or it refers to something that is not data.
    """
    if not (directory / _PICKLE).exists():
        raise ArtifactError(f"{directory} contains no {_PICKLE}, expected a workflow saved by NVTabular 23.8.")
    workflow = _load_pickle(directory)
    try:
        _check_sizes(workflow)
    except ArtifactError as error:
        raise ArtifactError(
            f"{directory} was not loaded: {error}. Expected a workflow written by NVTabular's Workflow.save."
        ) from None
    return workflow


def _check_sizes(workflow: nvt.Workflow) -> None:
    """Reject a workflow that would use much more memory than its files occupy on disk."""
    operators = [node.op for node in _nodes(workflow.graph)]
    for operator in operators:
        if isinstance(operator, ops.ListSlice) and operator.pad and operator.max_elements > MAX_PADDED_LENGTH:
            raise ArtifactError(
                f"a ListSlice pads lists to {operator.max_elements} values, expected at most {MAX_PADDED_LENGTH}"
            )
    files = {
        file
        for operator in operators
        for kind, attribute in _FILES.items()
        if isinstance(operator, kind)
        for file in getattr(operator, attribute).values()
    }
    for file in sorted(files):
        check_vocabulary(Path(file))


def _load_pickle(directory: Path) -> nvt.Workflow:
    path = directory / _PICKLE
    try:
        content = read_regular(path, _MAX_PICKLE_BYTES)
        with quiet_nvtabular():
            tree = parse_pickle(BytesIO(content))
            check_extent(tree, len(content))
            workflow = make_parts(tree)
        if isinstance(workflow, nvt.Workflow):
            for node in _nodes(workflow.graph):
                _keep_files_in(node.op, directory)
                label_unloaded_functions(node)
    except ArtifactError as error:
        remedy = _too_old(directory) or (
            "Expected NVTabular operators, and data in the same directory; register your own operator classes in the "
            f"entry-point group {GROUP} of their package."
        )
        reason = " ".join(str(error).split())  # names in the message may contain line feeds
        raise ArtifactError(f"{path} was not loaded: {reason}. {remedy}") from None
    except ImportError as error:
        remedy = _too_old(directory) or "Install or fix the package of this module."
        raise ArtifactError(
            f"{path} was not loaded: a module that the workflow needs cannot be imported ({in_short(error)}). {remedy}"
        ) from None
    except Exception as error:  # damaged pickles raise many types of exceptions
        remedy = _too_old(directory) or "Prepare the data again, or save your own workflow again."
        raise ArtifactError(f"{path} cannot be read ({type(error).__name__}: {in_short(error)}). {remedy}") from None
    if not isinstance(workflow, nvt.Workflow):
        raise ArtifactError(f"{path} contains {type(workflow).__name__}, expected an NVTabular workflow.")
    keep_vocabularies_in(workflow, directory)
    return workflow


def _too_old(directory: Path) -> str:
    """Return an error message if the workflow was saved with unsupported package versions, or else an empty string."""
    try:
        saved_by = json.loads(read_regular(directory / _METADATA, _MAX_METADATA_BYTES))["versions"]
        is_old = any(_numbers(saved_by[name]) < _numbers(oldest) for name, oldest in _OLDEST.items())
    except (OSError, LookupError, TypeError, ValueError, AttributeError):  # damaged or foreign metadata
        return ""
    found, oldest = (" and ".join(f"{name} {versions[name]}" for name in _OLDEST) for versions in (saved_by, _OLDEST))
    return f"The workflow was saved by {found}, expected {oldest} or later. Prepare the data again." if is_old else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".")[:2])


def _nodes(graph: Any) -> list[Any]:
    if not isinstance(graph, Graph):
        raise ArtifactError("it has no graph")
    nodes = _walked([graph.output_node], _sources)
    if any(not isinstance(node.op, ops.Operator) for node in nodes):
        raise ArtifactError("its graph has a node without an operator")
    _walked(nodes, lambda node: node.children)
    return nodes


def _sources(node: Any) -> list[Any]:
    inner = [node.op.graph.output_node] if isinstance(node.op, Subgraph) else []
    return [*node.parents_with_dependencies, *inner]


def _walked(starts: list[Any], following: Callable[[Any], list[Any]]) -> list[Any]:
    """Return the nodes reachable from `starts` in post-order, so that each node comes after the nodes `following`
    returns for it.
    """
    walked: list[Any] = []
    num_paths: dict[int, int] = {}  # paths from each node; 0 while the node is being visited

    def walk(node: Any) -> None:
        if not isinstance(node, Node):
            raise ArtifactError(f"its graph contains {type(node).__name__} in place of a node")
        num_paths[id(node)] = 0
        counts = []
        for other in following(node):
            if id(other) not in num_paths:
                walk(other)
            counts.append(num_paths[id(other)])
        if 0 in counts or sum(counts) > _MAX_PATHS:
            raise ArtifactError(f"its graph has a cycle or more than {_MAX_PATHS} paths")
        num_paths[id(node)] = max(1, sum(counts))
        walked.append(node)

    for start in starts:
        if id(start) not in num_paths:
            walk(start)
    return walked


def _keep_files_in(operator: Any, directory: Path) -> None:
    """Make an operator's file paths point to `directory` instead of the directory where the workflow was saved."""
    _rename_files(operator, str(directory), lambda file: _moved(file, operator.out_path, directory))
    if isinstance(operator, ops.JoinExternal):
        if not isinstance(operator.df_ext, nvt.Dataset):
            raise ArtifactError("one of its JoinExternal operators has no table to join")
        operator._ext_cache = None


def _moved(file: str, saved_in: str, directory: Path) -> str:
    name = file.removeprefix(saved_in).lstrip("/")
    path = directory / name
    is_address = "::" in name or "://" in name  # to fsspec, which NVTabular opens files with
    if is_address or not file.startswith(saved_in) or not path.resolve().is_relative_to(directory.resolve()):
        raise ArtifactError(f"it refers to the file {file!r}, which is not in the workflow's directory")
    return str(path)


def for_inference(workflow: nvt.Workflow, load: Callable[[], nvt.Workflow]) -> nvt.Workflow:
    """Return a workflow for serving, with target encodings based on the statistics of all rows.

    NVTabular's `TargetEncoding` excludes the statistics of a random fold, so that a training row's encoding does not
    depend on its own target. It does the same with rows that it was not fitted to, and it requires the target columns
    to be present. Without a `TargetEncoding`, the workflow is returned unchanged.
    """
    if not _target_encodings(workflow):
        return workflow
    workflow = load()
    for operator in _target_encodings(workflow):
        operator.kfold = 1
    return workflow


def reject_kfold(workflow: nvt.Workflow) -> None:
    """Raise `ConfigError` if a workflow uses target encoding with several folds, which are assigned by row position in
    the fitted data.
    """
    if any(operator.kfold > 1 for operator in _target_encodings(workflow)):
        raise ConfigError(
            "TargetEncoding with several folds requires each row's position in the fitted data, which a loader does "
            "not know. Pass kfold=1, or apply the operator when preparing the data."
        )


def _target_encodings(workflow: nvt.Workflow) -> list[Any]:
    return [node.op for node in _nodes(workflow.graph) if isinstance(node.op, ops.TargetEncoding)]


def keep_vocabularies_in(workflow: nvt.Workflow, directory: Path) -> None:
    """Set the directory that contains the vocabulary files and to which a later fit writes them.

    Without this call, NVTabular writes `categories/` to the current directory.
    """
    for operator in _with_statistics(workflow):
        operator.set_storage_path(str(directory), copy=False)


def _with_statistics(workflow: nvt.Workflow) -> list[Any]:
    return [node.op for node in Graph.get_nodes_by_op_type([workflow.output_node], StatOperator)]
