"""Rankline measured against its peers: `python -m bench NAME`."""
