"""The backend `fused`."""
