"""Triton's Python-based backends: each `NAME/model.py` serves the models whose config says `backend: "NAME"`."""
