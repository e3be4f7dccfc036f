"""NVIDIA's SIM for TensorFlow 2: the parameters, modes and log lines of its `main.py`."""
