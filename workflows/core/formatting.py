import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from difflib import get_close_matches

_LARGE = 100  # regression errors above this need no four decimals


def quality_figure(value: float, sign: str = "") -> str:
    """Format a model metric, such as 0.8123 or 95,258.1. Pass `sign="+"` for a change."""
    return f"{value:{sign}.4f}" if abs(value) < _LARGE else f"{value:{sign},.6g}"


def quality_interval(low: float, high: float) -> str:
    """Format a confidence interval for the change in a metric, such as +0.0010 to +0.0030."""
    return f"{quality_figure(low, '+')} to {quality_figure(high, '+')}"


def local_time(moment: datetime) -> str:
    return f"{moment.astimezone():%Y-%m-%d %H:%M}"


def listed(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Join the first `most` strings, and append the number of strings left out, if any."""
    return separator.join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def natural_order(name: str) -> tuple[list[str | int], str]:
    """Return a sort key that compares numbers in names by value, so that part_2 sorts before part_10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)], name


_MIN_SIMILARITY = 0.75  # accepts two swapped letters in a word of four
_MIN_BEGINNING = 3


def did_you_mean(wrong: Iterable[str], right: Iterable[str]) -> str:
    """Return a "Did you mean …?" suggestion with a leading space, for appending to a message, or an empty string if no
    name is similar.
    """
    known = {_letters(name): name for name in right}
    closest = ((name, closest_name(_letters(name), known)) for name in wrong)
    meant = [f"{known[found]!r} by {name!r}" for name, found in closest if found]
    return f" Did you mean {', '.join(meant)}?" if meant else ""


def closest_name(word: str, known: Collection[str], *, min_similarity: float = _MIN_SIMILARITY) -> str | None:
    """Return the known name most similar to `word`, or else the only one that starts with it; None if there is none."""
    if similar := get_close_matches(word, known, n=1, cutoff=min_similarity):
        return similar[0]
    longer = [name for name in known if len(word) >= _MIN_BEGINNING and name.startswith(word)]
    return longer[0] if len(longer) == 1 else None


def _letters(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "") or name
