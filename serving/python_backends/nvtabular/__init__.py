"""The backend `nvtabular`."""
