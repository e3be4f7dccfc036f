import pandas as pd
import pyarrow as pa
import pytest

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.online import OnlineWorkflow

ROWS = pd.DataFrame({"user": [3, 1, 3], "price": [1.0, 2.0, 4.0], "label": [0, 1, 1]})


def fitted(graph: nvt.WorkflowNode) -> nvt.Workflow:
    with quiet_nvtabular():
        return nvt.Workflow(graph).fit(nvt.Dataset(ROWS))


def test_it_makes_the_workflows_columns_and_keeps_others() -> None:
    workflow = fitted(["price"] >> ops.FillMissing() >> ops.LogOp())
    online = OnlineWorkflow(workflow, keep=["price", "label"])
    assert online.columns == ("price", "label")
    table = pa.Table.from_pandas(ROWS)
    made = online(table)
    assert made.column_names == ["price", "label"]
    assert made["label"] == table["label"]
    with quiet_nvtabular():
        assert made["price"].to_pylist() == workflow.transform(ROWS)["price"].tolist()


@pytest.mark.parametrize("other", [lambda x: x, None, "directory", ["user"] >> ops.Categorify()])
def test_what_is_no_workflow_is_refused(other: object) -> None:
    with pytest.raises(ConfigError, match=f"map got a {type(other).__name__}, expected a fitted nvtabular.Workflow"):
        OnlineWorkflow(other)


def test_a_workflow_that_is_not_fitted_is_refused() -> None:
    with pytest.raises(ConfigError, match="not fitted"):
        OnlineWorkflow(nvt.Workflow(["user"] >> ops.Categorify()))
