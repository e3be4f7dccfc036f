"""NVTabular graphs: fitted in one line, and what they make of rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in


class AtTimes(ops.Operator):
    """Hands columns on, or fails."""

    fails = False

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        if self.fails:
            raise ValueError("not today")
        return df[col_selector.names]


def fitted(graph: Callable[[], Any], rows: pd.DataFrame, directory: Path) -> nvt.Workflow:
    """A graph as a workflow that was fitted to rows, with its vocabularies in `directory`."""
    with quiet_nvtabular():
        workflow = nvt.Workflow(graph())
        keep_vocabularies_in(workflow, directory)
        return workflow.fit(nvt.Dataset(rows))


def transformed(workflow: nvt.Workflow, rows: pd.DataFrame) -> dict[str, list[Any]]:
    """The columns that a workflow makes of rows, as plain lists."""
    with quiet_nvtabular():
        made = workflow.transform(rows.copy())
    return {name: [list(v) if isinstance(v, list | np.ndarray) else v for v in made[name]] for name in made}
