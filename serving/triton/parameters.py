"""Parameters of `config.pbtxt` that more than one part reads: export writes them, backends and clients go by them."""

CANDIDATES = "CANDIDATES"
"""Inputs that hold a value per candidate, [num_rows, num_candidates], by name, with commas between."""

MAX_LIST_LENGTH = "MAX_LIST_LENGTH"
"""Most values of a list, and most candidates, of one row of a request; 0 for any number."""

CLASSES = "CLASSES"
"""Output → names of its classes, in the order of their probabilities, as JSON; left out where there are none."""


def names_in(value: str) -> tuple[str, ...]:
    return tuple(filter(None, value.split(",")))


PLAN = "plan"
"""Directory of the compiled workflow in a version directory: alone, or beside the model that it stands before."""

COLUMNS_FILE = "columns.json"
"""In a version directory, of a workflow that runs through NVTabular, in place of a plan."""
