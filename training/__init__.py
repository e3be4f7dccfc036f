"""Loaders, layers, models, the training loop and tracking. Never imports `serving`."""
