"""Triton backend `nvtabular`: serves the workflow at `<version>/plan`, compiled or run through NVTabular.

A folder with this file is a backend (Triton's "Python-based backend"), so a model repository contains the plan and a
config, but no code. A list column has two tensors, `name__values` with lists padded by zeros or empty strings, and
`name__nnzs`; a third, `name__valid`, may mark missing lists. See `rankline.workflows.schema.tensor_names`.

Parameters in `config.pbtxt`:

    CANDIDATES        raw columns that may have several values per row, [num_rows, num_candidates]; the columns that
                      candidates share are transformed once
    MAX_LIST_LENGTH   maximum number of list values, and of candidates, in one row of a request; default 0: no limit
"""

from rankline.serving.python_backends.batching import BatchingModel
from rankline.serving.python_backends.model_arguments import Run, ServedModel
from rankline.serving.python_backends.plan_step import load_workflow


class TritonPythonModel(BatchingModel):
    FRAMEWORK = "the workflow"

    def load(self, model: ServedModel) -> Run:
        return load_workflow(model)

    def load_step(self, model: ServedModel) -> Run:
        return self.load(model)
