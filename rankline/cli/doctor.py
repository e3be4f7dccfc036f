"""The verb `doctor`."""

import typer

from rankline.cli.arguments import JsonFile
from rankline.cli.checks import check_writable
from rankline.display import CONSOLE


def doctor_command(json_file: JsonFile = None) -> None:
    """Check this machine and say what works.

    **Examples**

    rankline doctor

    rankline doctor --json doctor.json
    """
    check_writable(json_file)
    from rankline.doctor import examine, report
    from rankline.pipeline import write_json
    from rankline.summary import print_check

    checks = []
    for check in examine():  # each is shown as soon as it is known
        print_check(check, CONSOLE)
        checks.append(check)
    if json_file:
        write_json(report(checks), json_file)
    if any(check.required and not check.works for check in checks):
        raise typer.Exit(1)
