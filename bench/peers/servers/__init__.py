"""Servers around one scorer of dictionaries and ONNX Runtime, and NVTabular with TensorFlow behind FastAPI."""
