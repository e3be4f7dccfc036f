"""Compilation of fitted NVTabular workflows to plans."""
