from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from rankline.cli.options.arguments import JsonFile, check_writable
from rankline.terminal.console import CONSOLE, show

if TYPE_CHECKING:
    from rankline.doctor.checks import Check


def doctor_command(json_file: JsonFile = None) -> None:
    """Check this machine and report which features work.

    **Examples**

    rankline doctor

    rankline doctor --json doctor.json
    """
    check_writable(json_file)
    from rankline.api.pipeline import write_json
    from rankline.doctor.checks import examine, report

    checks = []
    for check in examine():  # print each result as soon as it is known
        mark = "[green]✓[/]" if check.works else "[red]✗[/]" if check.required else "[dim]–[/]"
        show(CONSOLE, escape(check.detail), f"{mark} {escape(check.name)}", 19)
        checks.append(check)
    _print_conclusion(checks)
    if json_file:
        write_json(report(checks), json_file)
    if any(check.required and not check.works for check in checks):
        raise typer.Exit(1)


def _print_conclusion(checks: "Sequence[Check]") -> None:
    CONSOLE.print()
    if broken := [check.name for check in checks if check.required and not check.works]:
        show(CONSOLE, f"[bold red]Not ready:[/] {escape(', '.join(broken))}. The lines above say how to fix this.")
    else:
        show(CONSOLE, "[bold green]Ready:[/] prepare, train, export, serve and bench work here.")
    if missing := [check.name for check in checks if not check.required and not check.works]:
        show(CONSOLE, f"Not available, and not needed for these: {escape(', '.join(missing))}.")
