"""Tables whose cells are never cut."""

import io

import pytest
from rich.console import Console

from rankline.display import print_whole

COLUMNS = {"rows": ["1", "16,384"], **{f"figure {i}": [f"{i}.123456789", f"{i}"] for i in range(8)}}


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_cell_is_cut_and_the_first_column_comes_again(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    print_whole(console, COLUMNS)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text
    for name, cells in COLUMNS.items():
        assert name in text
        assert all(cell in text for cell in cells)
    parts = text.count("16,384")
    assert parts == (1 if width == 200 else parts)
    assert parts > 1 or width == 200
    assert all(len(line.rstrip()) <= max(width, 22) for line in text.splitlines())


def test_markup_in_cells_takes_no_room() -> None:
    console = Console(file=io.StringIO(), width=30)
    print_whole(console, {"": ["a"], "x": ["[bold red]12345[/]\n[dim]±5%[/]"], "y": ["[dim]12345[/]"]})
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("a ") == 1


def test_a_table_below_another_leaves_out_what_it_has_nothing_of() -> None:
    console = Console(file=io.StringIO(), width=24)
    print_whole(console, {"": ["auc", "rmse", "none"], "adult": ["0.91", "", ""], "a second one": ["", "38.5", ""]})
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().split() == ["adult", "auc", "0.91", "a", "second", "one", "rmse", "38.5"]
