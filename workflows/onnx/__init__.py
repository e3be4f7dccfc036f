"""ONNX graphs: writing them, and converting trees to them."""
