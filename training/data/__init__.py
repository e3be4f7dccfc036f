"""Prepared data for training: import, loading, and conversion between file formats."""
