"""From prepared data and a trained model to a version in a model repository, checked before it is published."""
