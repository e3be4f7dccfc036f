"""A tritonserver child process: installation, startup, supervision, model control and shutdown."""
