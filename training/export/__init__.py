"""Trained models as files: SavedModel, TorchScript and ONNX, each with its signature."""
