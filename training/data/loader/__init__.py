"""Streaming of Parquet files as batches: a framework-independent core and a loader for each framework."""
