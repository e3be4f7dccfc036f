"""C++ that runs inside Triton in place of Python backends; `build.py` compiles it, `objects.py` finds it."""
