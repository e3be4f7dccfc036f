"""Export of trained models as SavedModel, TorchScript and ONNX, each with its signature."""
