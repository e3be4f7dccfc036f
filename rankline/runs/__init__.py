"""MLflow runs: their reports, exports and comparisons."""
