"""Contracts between the stages: feature specs, tensors and their names, targets, and model artifacts."""
