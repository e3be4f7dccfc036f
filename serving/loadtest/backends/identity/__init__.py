"""Triton backend `identity`."""
