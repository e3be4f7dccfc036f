"""The TensorFlow engine, for SavedModels."""

from rankline.serving.engines import Engine
from rankline.workflows.schema.model_artifact import SAVED_MODEL
from rankline.workflows.schema.tensor_names import PADDED_SIGNATURE

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
