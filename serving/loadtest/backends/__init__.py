"""Triton backends used only in measurements."""
