"""The front desk: command line, recipes and the whole pipeline."""
