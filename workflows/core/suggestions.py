"""Suggest the closest known name."""

from collections.abc import Iterable
from difflib import get_close_matches

_LEAST_SIMILARITY = 0.75  # two letters swapped in a word of four


def did_you_mean(wrong: Iterable[str], right: Iterable[str]) -> str:
    """A sentence for the end of a message, after a space; empty where nothing is similar."""
    known = {_letters(name): name for name in right}
    closest = ((name, get_close_matches(_letters(name), known, n=1, cutoff=_LEAST_SIMILARITY)) for name in wrong)
    meant = [f"{known[found[0]]!r} by {name!r}" for name, found in closest if found]
    return f" Did you mean {', '.join(meant)}?" if meant else ""


def _letters(name: str) -> str:
    """A name without case and separators."""
    return name.casefold().replace("-", "").replace("_", "") or name
