"""Datasets: for each a `Dataset`, its reader, and a generator of synthetic rows."""
