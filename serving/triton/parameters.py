"""Parameters of `config.pbtxt` that the exporter writes and backends and clients read."""

CANDIDATES = "CANDIDATES"
"""Comma-separated names of the inputs with one value per candidate, [num_rows, num_candidates]."""

MAX_LIST_LENGTH = "MAX_LIST_LENGTH"
"""Maximum number of list values, and of candidates, in one row of a request; 0 for no limit."""

CLASSES = "CLASSES"
"""JSON of output → names of its classes in the order of their probabilities; omitted if no output has classes."""


def names_in(value: str) -> tuple[str, ...]:
    return tuple(filter(None, value.split(",")))


PLAN = "plan"
"""Directory of the workflow in a version directory, on its own or next to the model that it feeds."""

COLUMNS_FILE = "columns.json"
"""File in a workflow directory that marks a workflow run through NVTabular instead of a plan."""
