"""C++ that runs inside Triton in place of Python backends; `objects.py` finds it compiled."""
