"""Parquet files to batches: framework-free streaming, and what each framework wants on top of it."""
