"""Folders that Triton takes as backends: each `NAME/model.py` serves the models whose config says `backend: "NAME"`."""
