"""A fitted NVTabular workflow as a plan: the graph is walked once, and each operator turned into expressions."""
