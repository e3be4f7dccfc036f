"""Saved NVTabular workflows, loaded without running code from the file.

NVTabular saves a workflow as a pickle, and a pickle can call anything. Ours are read by an unpickler that resolves an
exact list of names that hold data, and operator classes; a tampered file is refused before it runs.
What this rules out is `LambdaOp` with a lambda, whose code lives in the pickle: write an operator class instead.

An installed package brings operator classes by the entry-point group `rankline.operators`, one class each, as
`log_price = "shop.operators:LogPrice"`. What may be imported is then said by the package that somebody installed, never
by the file that is read.
"""

import pickle
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from workflows.errors import ArtifactError
from workflows.upstream import nvt, quiet_nvtabular

from merlin.dag import Graph, iter_nodes  # isort: skip
from merlin.dag.ops.subgraph import Subgraph  # isort: skip
from nvtabular.ops import ColumnSimilarity, Operator, StatOperator  # isort: skip

# What a saved workflow is made of beside its operators, name by name.
_NAMES = {
    "builtins": {"slice", "set", "frozenset", "list", "dict", "tuple", "object", "range"},
    "collections": {"OrderedDict", "defaultdict"},
    "dask.dataframe.core": {"DataFrame", "Series"},
    "dask.highlevelgraph": {"HighLevelGraph", "MaterializedLayer"},
    "merlin.core.dispatch": {"ExtData"},
    "merlin.dag.executors": {"DaskExecutor", "Device", "LocalExecutor"},
    "merlin.dag.graph": {"Graph"},
    "merlin.dag.node": {"Node"},
    "merlin.dag.operator": {"DataFormats"},
    "merlin.dag.ops.concat_columns": {"ConcatColumns"},
    "merlin.dag.ops.selection": {"SelectionOp"},
    "merlin.dag.ops.subgraph": {"Subgraph"},
    "merlin.dag.ops.subset_columns": {"SubsetColumns"},
    "merlin.dag.selector": {"ColumnSelector"},
    "merlin.dtypes.base": {"DType", "ElementType", "ElementUnit", "Signedness"},
    "merlin.dtypes.shape": {"Dimension", "Shape"},
    "merlin.io.dataframe_engine": {"DataFrameDatasetEngine"},
    "merlin.io.dataset": {"Dataset"},
    "merlin.schema.schema": {"ColumnSchema", "Schema"},
    "merlin.schema.tags": {"Tags", "TagSet"},
    "numpy": {
        "dtype", "ndarray",
        # Scalar types, as operators are told what to put out; calling one makes a number.
        "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
        "float64",
    },
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
    "nvtabular.workflow.node": {"WorkflowNode"},
    "nvtabular.workflow.workflow": {"Workflow"},
    "pandas._libs.internals": {"_unpickle_block"},
    "pandas.core.frame": {"DataFrame"},
    "pandas.core.indexes.base": {"Index", "_new_Index"},
    "pandas.core.indexes.range": {"RangeIndex"},
    "pandas.core.internals.managers": {"BlockManager", "SingleBlockManager"},
    "pandas.core.series": {"Series"},
    "scipy.sparse._csr": {"csr_matrix"},
}  # fmt: skip
_OPERATORS = ("nvtabular.ops.", "workflows.operators", "workflows.item_attributes", "workflows.datasets.")
GROUP = "rankline.operators"


class _DataUnpickler(pickle.Unpickler):
    """Resolves classes and reconstruction helpers of the data libraries, nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy._core.", "numpy.core.")  # as NumPy 2 calls it; each takes the other's files
        if name in _NAMES.get(module, ()):
            return super().find_class(module, name)
        if (module.startswith(_OPERATORS) and "." not in name) or f"{module}:{name}" in _installed():
            found = super().find_class(module, name)
            # Defined there, not merely imported there: modules hold much more than their own classes.
            if isinstance(found, type) and issubclass(found, Operator) and found.__module__ == module:
                return found
        raise ArtifactError(f"it refers to {module}.{name}, which is not data")


def _installed() -> set[str]:
    """Operator classes of installed packages, as MODULE:CLASS."""
    return {entry.value for entry in entry_points(group=GROUP)}


def save_workflow(workflow: nvt.Workflow, directory: Path) -> None:
    """Save in NVTabular's own format: `workflow.pkl`, `metadata.json` and the vocabularies."""
    workflow.save(str(directory))


def load_workflow(directory: Path) -> nvt.Workflow:
    """Load a saved NVTabular workflow, running no code from the file.

    Raises:
        ArtifactError: missing, damaged, or it refers to something that is not data.
    """
    path = directory / "workflow.pkl"
    try:
        with path.open("rb") as stream, quiet_nvtabular():
            workflow = _DataUnpickler(stream).load()
            if isinstance(workflow, nvt.Workflow):
                _check_matrices(workflow.output_node)
    except FileNotFoundError:
        raise ArtifactError(f"{directory} holds no workflow.pkl. Expected a saved NVTabular workflow.") from None
    except ArtifactError as error:
        raise ArtifactError(
            f"{path} was not loaded: {error}. Expected NVTabular operators and data only; "
            f"write a LambdaOp as an operator class, and name it in the entry-point group {GROUP} of its package."
        ) from None
    except Exception as error:  # damaged pickles raise anything
        raise ArtifactError(
            f"{path} cannot be read ({type(error).__name__}: {error}). Prepare the data again."
        ) from None
    if not isinstance(workflow, nvt.Workflow):
        raise ArtifactError(f"{path} holds {type(workflow).__name__}, expected an NVTabular workflow.")
    keep_vocabularies_in(workflow, directory)
    return workflow


def _check_matrices(output_node: Any) -> None:
    """Refuse sparse matrices whose indices lead outside of them: SciPy and NVTabular follow them unchecked."""
    for node in iter_nodes([output_node]):
        if isinstance(node.op, Subgraph):
            _check_matrices(node.op.graph.output_node)
        elif isinstance(node.op, ColumnSimilarity):
            for matrix in (node.op.left_features, node.op.right_features):
                if matrix is not None:
                    matrix.check_format(full_check=True)


def keep_vocabularies_in(workflow: nvt.Workflow, directory: Path) -> None:
    """Tell a workflow's statistics where their files are; before a fit, where to write them.

    Without it NVTabular writes `categories/` into the current directory.
    """
    for node in Graph.get_nodes_by_op_type([workflow.output_node], StatOperator):
        node.op.set_storage_path(str(directory), copy=False)
