"""Export, Triton backends, the embedded server, client and benchmark. Never imports `training`."""
