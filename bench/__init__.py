"""Benchmarks of Rankline against its peers: `python -m bench NAME`."""
