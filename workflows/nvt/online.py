"""NVTabular workflows applied by the loader instead of in a separate pass over the data."""

from collections.abc import Sequence

import pyarrow as pa

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import check_no_folds
from rankline.workflows.nvt.operators.arrow_input import arrow_columns, frame_of
from rankline.workflows.nvt.operators.hashing import with_stable_hashes


class OnlineWorkflow:
    """Transforms raw columns; pass it to the loaders' `map`.

    Args:
        workflow: a fitted workflow. Hashing operators are replaced, because NVTabular includes the row's position in
            the hash; here equal values get equal ids in every row.
        keep: columns, such as labels, to copy from the files if the workflow does not output them.

    Raises:
        ConfigError: `workflow` is not a workflow or is not fitted, or it contains hashing without a stable equivalent
            or target encoding with folds.
    """

    def __init__(self, workflow: nvt.Workflow, keep: Sequence[str] = ()) -> None:
        if not isinstance(workflow, nvt.Workflow):
            raise ConfigError(
                f"map got a {type(workflow).__name__}, expected a fitted nvtabular.Workflow. Pass a function of "
                "batches to as_dataset().map of the TensorFlow loader, or to DLDataLoader as collate_fn."
            )
        if workflow.output_schema is None:
            raise ConfigError("the workflow is not fitted. Call workflow.fit(dataset) first, or load a saved one.")
        check_no_folds(workflow)
        self._workflow = with_stable_hashes(workflow)
        self._reads = list(workflow.input_schema.column_names)
        self._arrow = arrow_columns(workflow)
        self._keep = [name for name in keep if name not in workflow.output_schema.column_names]
        self.columns = tuple(dict.fromkeys([*self._reads, *self._keep]))

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the outputs of the workflow and the kept columns, in the row order of `table`."""
        with quiet_nvtabular():
            made = pa.Table.from_pandas(self._workflow.transform(frame_of(table.select(self._reads), self._arrow)))
        for name in self._keep:
            made = made.append_column(name, table.column(name))
        return made
