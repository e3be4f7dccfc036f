"""The verb `sync`: what a tracking server has not got yet."""

import typer

from rankline.cli.arguments import WorkDir
from rankline.display import note, say
from rankline.workspace import WORK_DIR
from training.tracking.config import journals_of
from training.tracking.journal import left_in


def sync_command(*, work_dir: WorkDir = WORK_DIR) -> None:
    """Deliver to MLflow what runs have logged while its server did not answer; nothing is lost or there twice.

    Runs that are going on are left alone: they deliver by themselves. One that was killed is marked so.

    **Example**

    rankline sync
    """
    if not left_in(journals_of(work_dir)):
        say(f"nothing to deliver in {journals_of(work_dir)}")
        return
    from rankline.tracking.store import deliver

    outcomes = list(deliver(work_dir))
    for one in outcomes:
        if one.failure:
            note(f"Warning: {one.words}")
        else:
            say(one.words)
    if any(one.failure for one in outcomes):
        raise typer.Exit(1)
    if not outcomes:
        say("nothing to deliver but of runs that are going on")
