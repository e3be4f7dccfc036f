from linear_engine.scoring import read, score
from rankline.serving.python_backends.batching import BatchingModel
from rankline.serving.python_backends.model_arguments import Run, ServedModel


class TritonPythonModel(BatchingModel):
    FRAMEWORK = "the linear engine"

    def load(self, model: ServedModel) -> Run:
        weights, names = read(model.version / "model.npz"), [tensor.name for tensor in model.inputs]
        return lambda *arrays: [score(weights, dict(zip(names, arrays, strict=True)))]
