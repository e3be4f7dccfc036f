"""Components for the container stack: images, dashboards, and a benchmark client that needs only gRPC."""
