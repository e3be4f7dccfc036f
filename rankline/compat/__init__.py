"""Command lines of other projects, implemented with Rankline's training."""
