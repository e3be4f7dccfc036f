"""Saved workflows: written by NVTabular, read as data."""
