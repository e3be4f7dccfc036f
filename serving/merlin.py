"""The one door to merlin-systems.

Importing merlin-systems sets PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python for this process and every child, which
makes protobuf slow in a server started later. The variable is put back as it was.
"""

import os
import warnings

from workflows.upstream import quiet_nvtabular

_VARIABLE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
_before = os.environ.get(_VARIABLE)
with quiet_nvtabular(), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from merlin.dag import postorder_iter_nodes
    from merlin.dag.runtime import Runtime
    from merlin.systems.dag import Ensemble
    from merlin.systems.dag.ops.tensorflow import PredictTensorflow
    from merlin.systems.dag.ops.workflow import TransformWorkflow
if _before is None:
    os.environ.pop(_VARIABLE, None)
else:
    os.environ[_VARIABLE] = _before

__all__ = ["Ensemble", "PredictTensorflow", "Runtime", "TransformWorkflow", "postorder_iter_nodes"]
