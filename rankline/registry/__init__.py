"""Exported versions in MLflow's registry: registering, promoting, following an alias, and loading through MLflow."""
