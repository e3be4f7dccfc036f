"""The command line: one file per verb. `main` registers them."""
