"""The commands of docs/guide/distributed.md, for short data, two workers and the hosts that tests have.

Most run where a test looks at what they do; `test_distributed_document.py` runs the others.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from tests.harness.commands.command_line import commands

ROOT = Path(__file__).parents[3]
_DOCUMENT = (ROOT / "docs" / "guide" / "distributed.md").read_text(encoding="utf-8")
_NOT_HERE = ("MPI=1", "docker", "kustomize", "kubectl", "make test")
COMMANDS = [
    line.partition(" # ")[0].strip() for line in commands(_DOCUMENT) if not any(word in line for word in _NOT_HERE)
]
HOROVOD = "make horovod"
DOCTOR = "rankline doctor"
WORKERS = "rankline train movielens --workers 4"
HOSTS = "rankline train movielens --hosts a:4,b:4"
HOROVODRUN = "horovodrun -np 8 -H a:4,b:4 rankline train movielens"
ELASTIC = "rankline train movielens --workers 4 --min-workers 2 --max-workers 4"
DISCOVERED = (
    "rankline train movielens --workers 4 --min-workers 2 --max-workers 8 --host-discovery-script ./hosts.sh "
    "--network-interface eth0"
)
LOOKED_AT = (HOROVOD, DOCTOR, WORKERS, HOSTS, HOROVODRUN, ELASTIC, DISCOVERED)
"""By `test_pipeline.py`, `test_launcher.py` and `test_two_hosts.py`; building Horovod by `make --dry-run` alone."""
HERE = {
    "-np 8 -H a:4,b:4": "-np 2 -H localhost:2",
    "--workers 4": "--workers 2",
    "--min-workers 2": "--min-workers 1",
    "--max-workers 4": "--max-workers 2",
    "--max-workers 8": "--max-workers 2",
    "local:8": "local:2",
    "/shared/": "",
}
"""What stands for what in the document's commands."""


def here(command: str, more: Mapping[str, str] | None = None) -> str:
    """A command of the document for this machine; with more words that stand for others."""
    assert command in COMMANDS, command
    for there, replacement in {**HERE, **(more or {})}.items():
        command = command.replace(there, replacement)
    return command


def arguments(command: str, more: Mapping[str, str] | None = None) -> list[str]:
    """What comes after `rankline` in such a command."""
    program, *words = shlex.split(here(command, more))
    assert program == "rankline", command
    return words
