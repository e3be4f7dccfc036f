"""Terminal output: the console, progress, and tables."""
