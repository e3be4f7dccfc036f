"""Prepared data as training reads it, and its conversion between file formats."""
