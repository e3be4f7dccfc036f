"""Data preparation and artifacts: the lowest layer. It imports neither TensorFlow nor any layer above it."""
