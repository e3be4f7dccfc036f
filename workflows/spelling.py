"""What somebody may have meant by a name that is none."""

from collections.abc import Iterable
from difflib import get_close_matches

_MOST_MISTAKES = 2
_LETTERS_PER_MISTAKE = 3  # with more of them, a word is another word


def did_you_mean(wrong: Iterable[str], right: Iterable[str]) -> str:
    """A sentence for the end of a message, after a space; empty where nothing is alike.

    Args:
        wrong: names that were given.
        right: names that there are.
    """
    known = {_letters(name): name for name in right}
    alike = ((name, _closest(_letters(name), known)) for name in wrong)
    meant = [f"{known[found]!r} by {name!r}" for name, found in alike if found is not None]
    return f" Did you mean {', '.join(meant)}?" if meant else ""


def _letters(name: str) -> str:
    """What of a name has to be right: neither its case nor what stands between its words."""
    return name.casefold().replace("-", "").replace("_", "") or name


def _closest(wrong: str, known: Iterable[str]) -> str | None:
    """The word with the fewest mistakes, if one is meant."""
    found = [(_mistakes(wrong, word), word) for word in get_close_matches(wrong, known)]
    fewest, word = min(found, default=(0, None))
    longest = max(len(wrong), len(word or ""))
    return word if fewest <= min(_MOST_MISTAKES, longest // _LETTERS_PER_MISTAKE) else None


def _mistakes(wrong: str, right: str) -> int:
    """Letters that are missing, too many or others, and neighbours that are swapped: the optimal string alignment."""
    above, row = [0] * (len(right) + 1), list(range(len(right) + 1))
    for i, letter in enumerate(wrong):
        before, above, row = above, row, [i + 1]
        for j, expected in enumerate(right):
            swapped = i > 0 and j > 0 and (letter, wrong[i - 1]) == (right[j - 1], expected)
            ways = [above[j + 1] + 1, row[j] + 1, above[j] + (letter != expected)]
            row.append(min([*ways, before[j - 1] + 1] if swapped else ways))
    return row[-1]
