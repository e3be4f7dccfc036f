"""Triton backend `nvtabular`, which transforms raw columns with a fitted workflow."""
