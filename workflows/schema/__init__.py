"""Contracts between the stages: the feature spec, tensors and their names, targets, and model artifacts."""
