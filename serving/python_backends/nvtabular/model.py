"""Triton backend `nvtabular`: serves the compiled workflow at `<version>/plan`, or one that runs through NVTabular.

A folder with this file is a backend (Triton's "Python-based backend"), so a model repository holds the plan and a
config, and no code. A column of lists is two tensors, `name__values` with zeros or empty strings behind the end of each
list, and `name__nnzs`; a third, `name__valid`, may mark what is missing. See `rankline.workflows.schema.tensor_names`.

Parameter read from `config.pbtxt`:

    CANDIDATES        raw columns that may hold several values per row, [num_rows, num_candidates]; what they share is
                      transformed once
    MAX_LIST_LENGTH   most values of a list, and most candidates, of one row of a request, default 0: any number
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
