"""What the exporter and Triton's backends agree on: configurations, parameters of models, and checksums."""
