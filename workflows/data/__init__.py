"""Datasets, each with a `Dataset`, a reader and a generator of synthetic rows."""
