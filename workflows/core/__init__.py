"""Utilities that all of Rankline uses: errors, progress, plug-ins, validation and message formatting."""
