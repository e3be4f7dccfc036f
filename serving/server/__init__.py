"""A tritonserver as a child process: installation, start, supervision, model control and stop."""
