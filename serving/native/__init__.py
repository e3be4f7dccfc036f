"""C++ backends that run inside Triton in place of Python backends, and the location of their compiled objects."""
