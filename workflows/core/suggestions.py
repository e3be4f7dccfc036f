from collections.abc import Iterable
from difflib import get_close_matches

_LEAST_SIMILARITY = 0.75  # accepts two swapped letters in a word of four


def did_you_mean(wrong: Iterable[str], right: Iterable[str]) -> str:
    """Return a suggestion to append to an error message, with a leading space; empty if no name is similar."""
    known = {_letters(name): name for name in right}
    closest = ((name, get_close_matches(_letters(name), known, n=1, cutoff=_LEAST_SIMILARITY)) for name in wrong)
    meant = [f"{known[found[0]]!r} by {name!r}" for name, found in closest if found]
    return f" Did you mean {', '.join(meant)}?" if meant else ""


def _letters(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "") or name
