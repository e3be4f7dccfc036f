"""The backend `pytorch`."""
