"""The backend `identity`."""
