"""Construction of ONNX graphs and conversion of decision trees to ONNX."""
