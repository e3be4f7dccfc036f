"""Launching several workers on one host or many, and restarting elastic runs."""
