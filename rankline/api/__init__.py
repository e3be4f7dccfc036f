"""The Python API, and the pipeline behind the commands."""
