"""Reimplementations of other projects' command lines on top of Rankline's training."""
