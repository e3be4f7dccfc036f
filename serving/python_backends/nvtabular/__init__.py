"""Triton backend `nvtabular`."""
