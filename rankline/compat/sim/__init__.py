"""Compatibility with NVIDIA's SIM for TensorFlow 2: the parameters, modes and log lines of its `main.py`.

The modules of this package call its README "the document".
"""
