"""Export prepared data and a trained model as a version in a model repository, verified before it is published."""
