"""A training run, from configuration to saved model: loop, checkpoints, evaluation, observers."""
