"""Command lines of other projects, on our training."""
