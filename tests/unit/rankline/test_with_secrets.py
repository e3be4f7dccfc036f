"""Secrets go to the workers of other machines, and stand on no command line."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rankline import with_secrets
from rankline.with_secrets import SECRETS

VALUES = {name: f'{name}\'s "value" $(id) = ; `id`' for name in SECRETS}
LAUNCH = """
import sys
from horovod.runner import gloo_run
from rankline.patched_horovodrun import keep_secrets_off_command_lines
keep_secrets_off_command_lines()
print(gloo_run.get_remote_command(sys.argv[1], host="other", port=2222))
"""
SSH = """#!/bin/sh
# What sshd does with the words behind the options: a shell gets them as one.
printf '%s\\n' "$@" > "$0.arguments"
while [ "$1" != -p ]; do shift; done; shift 2
exec env -i PATH="$PATH" sh -c "$*"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With a program in the place of ssh that runs a command here, without the environment, as on another machine."""
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    return {**os.environ, **VALUES, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_a_remote_worker_has_the_secrets_and_no_command_line_does(environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("horovod")
    wanted = shlex.quote("cd / > /dev/null 2>&1 ; env HERE=1 env")
    made = subprocess.run(
        [sys.executable, "-c", LAUNCH, wanted], env=environment, capture_output=True, text=True, check=True
    )
    command = made.stdout.strip().splitlines()[-1]
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, check=True)
    assert {f"{name}={value}" for name, value in VALUES.items()} <= set(done.stdout.splitlines())
    assert "HERE=1" in done.stdout
    for value in VALUES.values():
        assert value not in command
        assert value not in (tmp_path / "ssh.arguments").read_text()


def test_horovodrun_writes_no_secret_into_the_commands_of_workers(environment: dict[str, str]) -> None:
    pytest.importorskip("horovod")
    exported = LAUNCH.replace(
        "print(", "print(sorted(filter(gloo_run.env_util.is_exportable, __import__('os').environ))) or ("
    )
    made = subprocess.run(
        [sys.executable, "-c", exported, "x"], env=environment, capture_output=True, text=True, check=True
    )
    assert "'PATH'" in made.stdout
    assert not [name for name in SECRETS if f"'{name}'" in made.stdout]


def test_a_secret_that_is_not_there_is_not_sent(environment: dict[str, str]) -> None:
    for name in SECRETS[1:]:
        del environment[name]
    program = with_secrets.__file__
    done = subprocess.run([sys.executable, program, "cat"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{SECRETS[0]}={VALUES[SECRETS[0]]}\n\n"
