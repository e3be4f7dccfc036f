"""Data preparation and artifacts, the lowest layer of Rankline. It imports neither TensorFlow nor any higher layer."""
