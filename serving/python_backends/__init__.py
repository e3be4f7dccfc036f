"""Triton's Python-based backends. Each `NAME/model.py` serves the models whose config sets `backend: "NAME"`."""
