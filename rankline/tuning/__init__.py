"""Searches for hyperparameters, and for serving configurations that meet a latency objective."""
