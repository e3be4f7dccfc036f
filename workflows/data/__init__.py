"""Supported datasets, each with a `Dataset` object and reader. Public ones also have a generator of synthetic rows."""
