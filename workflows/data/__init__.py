"""Supported datasets, each with a `Dataset` object and a reader. Public datasets also have a generator of synthetic
rows.
"""
