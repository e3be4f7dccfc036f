"""What somebody may have meant by a name that is none."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(wrong: Iterable[str], right: Iterable[str]) -> str:
    """A sentence for the end of a message, after a space; empty where nothing is alike.

    Args:
        wrong: names that were given.
        right: names that there are.
    """
    known = {name.casefold(): name for name in right}
    alike = ((name, get_close_matches(name.casefold(), known, n=1)) for name in wrong)
    meant = [f"{known[found[0]]!r} by {name!r}" for name, found in alike if found]
    return f" Did you mean {', '.join(meant)}?" if meant else ""
