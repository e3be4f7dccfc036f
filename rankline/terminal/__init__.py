"""What is printed: the console, progress, and tables."""
