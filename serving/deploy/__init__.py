"""What the container stack adds: images, dashboards, and a benchmark client that needs nothing but gRPC."""
