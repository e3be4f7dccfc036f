"""Exported versions in MLflow's model registry."""
