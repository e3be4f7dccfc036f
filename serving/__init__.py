"""Export, Triton backends, embedded server, client and load test. Never imports `training`."""
