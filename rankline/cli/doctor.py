"""The verb `doctor`."""

import typer

from rankline.display import CONSOLE


def doctor_command() -> None:
    """Check this machine and say what works.

    **Example**

    rankline doctor
    """
    from rankline.doctor import examine
    from rankline.summary import print_check

    checks = []
    for check in examine():  # each is shown as soon as it is known
        print_check(check, CONSOLE)
        checks.append(check)
    if any(check.required and not check.works for check in checks):
        raise typer.Exit(1)
