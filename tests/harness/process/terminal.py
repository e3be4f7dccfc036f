"""What is printed on a terminal."""

import io
from collections.abc import Callable

from rich.console import Console


def printed(show: Callable[[Console], None], width: int = 80) -> str:
    file = io.StringIO()
    show(Console(file=file, width=width))
    return file.getvalue()
