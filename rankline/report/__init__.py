"""The page that a run leaves behind: how good the model is, how fast it is, and what both depend on."""
