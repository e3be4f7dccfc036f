"""A real tritonserver as a child process: found, started, watched, controlled and stopped."""
