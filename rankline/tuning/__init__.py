"""Searches for hyperparameters, and for the way of serving that keeps a latency objective."""
