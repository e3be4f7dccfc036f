"""Utilities used throughout Rankline: errors, progress, plug-ins, validation and message formatting."""
