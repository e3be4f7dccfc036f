"""Data loaders: a framework-independent core, and loaders for each framework."""
