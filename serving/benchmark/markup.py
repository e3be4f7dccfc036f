"""HTML from nested calls: plain text is escaped, so that no text of a report becomes markup."""

from html import escape


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, *content: str, **attributes: object) -> Markup:
    """An element.

    Args:
        name: of the element.
        *content: in it, one after another; anything but `Markup` is escaped.
        **attributes: `class_` stands for class.
    """
    given = "".join(f' {key.rstrip("_")}="{escape(str(value))}"' for key, value in attributes.items())
    return Markup(f"<{name}{given}>{joined(*content)}</{name}>")


def joined(*content: str) -> Markup:
    """Several pieces, one after another; anything but `Markup` is escaped."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in content))
