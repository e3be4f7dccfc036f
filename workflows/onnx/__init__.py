"""ONNX graphs: writing them, and converting decision trees to them."""
