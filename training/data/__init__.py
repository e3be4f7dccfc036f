"""Reading of prepared data for training, and conversion between file formats."""
