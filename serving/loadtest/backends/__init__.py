"""Triton backends that only measurements need."""
