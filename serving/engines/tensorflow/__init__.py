"""TensorFlow: runs SavedModels."""

from serving.engines import Engine
from workflows.tensor_names import PADDED_SIGNATURE
from workflows.trained import SAVED_MODEL

ENGINE = Engine(
    name="tensorflow",
    package=__name__,
    format=SAVED_MODEL,
    platform="tensorflow_savedmodel",
    parameters={"TF_GRAPH_TAG": "serve", "TF_SIGNATURE_DEF": PADDED_SIGNATURE},  # the tag for Triton's own backend
    threads_parameter="INTRA_OP_THREADS",
    module="tensorflow",
    extra="cpu",
    library="libtensorflow_cc.so.2",
)
