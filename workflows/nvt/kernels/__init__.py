"""Arithmetic shared by the NVTabular operators and the served plan."""
