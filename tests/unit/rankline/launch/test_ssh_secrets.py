"""Secrets go to the workers of other machines, and stand on no command line."""

import base64
import http.client
import os
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from rankline.launch import ssh_secrets as with_secrets
from rankline.launch.ssh_secrets import SECRETS

VALUES = {name: f'{name}\'s "value" $(id) = ; `id`' for name in SECRETS}
LAUNCH = """
import sys
from horovod.runner import gloo_run
from rankline.launch.horovodrun_patches import give_secrets_to_ssh, keep_secrets_off_command_lines
give_secrets_to_ssh()
keep_secrets_off_command_lines()
print(gloo_run.get_remote_command(sys.argv[1], host="other", port=2222))
"""
KEY = b"k" * 32
LOOK = f"""
import os, sys
from horovod.runner.common.util import settings as hvd_settings, timeout
from horovod.runner.driver import driver_service
from rankline.launch import horovodrun_patches as patched
patched.give_secrets_to_ssh()
patched.keep_key_off_command_lines()
settings = hvd_settings.Settings(
    verbose=2, ssh_port=2222, key={KEY!r}, start_timeout=timeout.Timeout(60, message="{{activity}}"), num_proc=2
)
print(*driver_service.get_common_interfaces(settings, ["localhost", "other"], ["other"], None), sep="\\n")
found = "127.0.0.1 found" if "127.0.0.1" in patched._FOUND else "not found"
key = "key forgotten" if patched.os.environ.keys().isdisjoint(["RANKLINE_HOROVOD_KEY"]) else "key kept"
# At once: Horovod's threads may still be printing.
sys.stdout.write(f"{{found}}, {{key}}\\n")
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


def test_remote_worker_has_the_secrets_and_no_command_line_does(environment: dict[str, str], tmp_path: Path) -> None:
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


def test_interface_search_has_its_key_and_no_command_line_does(environment: dict[str, str], tmp_path: Path) -> None:
    """One host is this machine, the other one is behind what stands in the place of ssh."""
    pytest.importorskip("horovod")
    made = subprocess.run(
        [sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert "127.0.0.1 found, key forgotten\n" in made.stdout
    arguments = (tmp_path / "ssh.arguments").read_text()
    pickles = []
    for text in [*arguments.split(), *made.stdout.split()]:
        with suppress(ValueError):
            pickles.append(base64.b64decode(text, validate=True))
    assert len([pickle for pickle in pickles if b"with_key" in pickle]) >= 2  # of ssh, and of this machine
    assert not [pickle for pickle in pickles if KEY in pickle]


def test_store_of_workers_is_bounded_and_talks_to_members_only() -> None:
    pytest.importorskip("horovod")
    from rankline.launch import horovodrun_patches as patched

    store = patched.MembersRendezvous()
    port = store.start()
    try:

        def ask(method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            status, found = response.status, response.read()
            connection.close()
            return status, found

        assert ask("PUT", "/global/0", b"here")[0] == 200
        assert ask("PUT", "/global/0", b"no, here")[0] == 409
        assert ask("GET", "/global/0") == (200, b"here")
        for length in (str(patched.MAX_BYTES + 1), "-1", "many", "²"):
            assert ask("PUT", "/global/1", b"", **{"Content-Length": length})[0] == 400, length
        assert ask("PUT", "/a/b/c/d", b"x")[0] == 400
        store._httpd.members = frozenset({"192.0.2.1"})
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            ask("GET", "/global/0")
        store._httpd.members = patched.addresses_of(["localhost"])
        assert ask("GET", "/global/0") == (200, b"here")
    finally:
        store.stop()
        store._httpd.server_close()


def test_secret_that_is_not_there_is_not_sent(environment: dict[str, str]) -> None:
    for name in SECRETS[1:]:
        del environment[name]
    program = with_secrets.__file__
    done = subprocess.run([sys.executable, program, "cat"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{SECRETS[0]}={VALUES[SECRETS[0]]}\n\n"
