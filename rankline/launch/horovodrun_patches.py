"""A patched horovodrun 0.28.1 that accepts the same arguments as the original.

- On each start, horovodrun imports TensorFlow in a separate process, for three seconds, to learn whether Horovod has
  Gloo or MPI. Here Horovod's library is queried directly.
- With Gloo, it writes the environment's secrets into the command lines of ssh and of workers, which every user of a
  machine can read. Here local workers inherit the secrets, and remote workers read them from the standard input of ssh
  (`rankline/launch/ssh_secrets.py`). mpirun gets only the names, and sends the values over its own connections.
- The tasks that look for the network interfaces of the hosts get a key on their command line, and the key allows anyone
  to run arbitrary commands through them. Here the key is passed in the same way as the secrets.
- The store through which workers find each other accepts any data from anybody. See `MembersServer`.
- Open MPI 5 takes two of the options that horovodrun passes to mpirun for the name of a program.
"""

import copy
import os
import re
import shlex
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
from horovod.runner import gloo_run, launch, mpi_run
from horovod.runner.common.util import env
from horovod.runner.driver import driver_service
from horovod.runner.http import http_server
from horovod.runner.util import remote

MAX_BYTES = 4 << 20
"""Limit for a value that a worker stores: its addresses, some hundred bytes per worker."""
_FOUND: set[str] = set()  # addresses of hosts, from the search for their interfaces
# Prefix of remote commands: read NAME=value lines up to an empty line.
_TAKE = 'while IFS= read -r line && [ -n "$line" ]; do export "$line"; done;'


def main() -> None:
    ask_the_library()
    give_secrets_to_ssh()
    if "--gloo" in sys.argv:
        keep_secrets_off_command_lines()
    keep_key_off_command_lines()
    mpi_run._NO_BINDING_ARGS = [f"-{option}" for option in mpi_run._NO_BINDING_ARGS]  # Open MPI 5 expects --bind-to
    gloo_run.RendezvousServer = MembersRendezvous
    sys.exit(launch.run_commandline())


def ask_the_library() -> None:
    """Make horovodrun query Horovod's library for its backends, without importing TensorFlow."""
    from rankline.launch.horovod_check import built_with

    launch.gloo_built = lambda verbose=False: "gloo" in built_with()  # noqa: ARG005
    launch.mpi_built = lambda verbose=False: "mpi" in built_with()  # noqa: ARG005


def give_secrets_to_ssh() -> None:
    ssh_command = remote.get_ssh_command
    give = shlex.join([sys.executable, str(Path(__file__).with_name("ssh_secrets.py"))])

    def ssh_command_with_secrets(local_command: str, *args: object, **options: object) -> str:
        return f"{give} {ssh_command(f'{shlex.quote(_TAKE)} {local_command}', *args, **options)}"

    remote.get_ssh_command = ssh_command_with_secrets


def keep_secrets_off_command_lines() -> None:
    from rankline.launch.ssh_secrets import SECRETS

    env.IGNORE_REGEXES |= {f"{re.escape(name)}$" for name in SECRETS}


def keep_key_off_command_lines() -> None:
    """Pass the key for horovodrun's network-interface search in an environment variable, and record the results."""
    from rankline.launch.ssh_secrets import KEY_VARIABLE

    launch_task_servers = driver_service._launch_task_servers
    get_common_interfaces, run_probe = driver_service.get_common_interfaces, driver_service._run_probe

    def launch_without_key(hosts: Any, local_hosts: Any, addresses: Any, settings: Any) -> None:
        os.environ[KEY_VARIABLE] = settings.key.hex()
        launch_task_servers(hosts, local_hosts, addresses, WithoutKey(settings))

    def get_and_forget(*args: Any, **options: Any) -> Any:
        try:
            return get_common_interfaces(*args, **options)
        finally:
            os.environ.pop(KEY_VARIABLE, None)  # workers do not need it

    def probe_and_note(driver: Any, *args: Any) -> Any:
        interfaces = run_probe(driver, *args)
        found = driver._all_task_addresses.values()
        _FOUND.update(address for host in found for places in host.values() for address, _ in places)
        return interfaces

    driver_service._run_probe = probe_and_note
    driver_service._launch_task_servers = launch_without_key
    driver_service.get_common_interfaces = get_and_forget


class WithoutKey:
    def __init__(self, settings: Any) -> None:
        self._settings = copy.copy(settings)
        self._settings.key = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)

    def __reduce__(self) -> tuple[Any, ...]:
        from rankline.launch.ssh_secrets import with_key

        return with_key, (self._settings,)


class MembersHandler(http_server.RendezvousHandler):  # type: ignore[misc]  # Horovod has no types
    """A request handler that limits the size of values and rejects a second value for the same key."""

    def do_PUT(self) -> None:  # noqa: N802  (name in the base class)
        length, parts = self.headers.get("Content-Length", ""), self.path.split("/")
        if not (length.isascii() and length.isdecimal()) or int(length) > MAX_BYTES or len(parts) != 3:
            self.send_status_code(http_server.BAD_REQUEST)
        elif self._get_value(*parts[1:]) is not None:
            self.send_status_code(409)
        else:
            super().do_PUT()


class MembersServer(http_server.RendezvousHTTPServer):  # type: ignore[misc]
    """A rendezvous server that accepts connections only from the IP addresses of the run's hosts.

    If the user named the interface, the addresses were not searched for, and a host may connect from an address other
    than the one its name resolves to. In that case all connections are accepted.
    """

    members: frozenset[str] | None = None

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002  (signature of the base class)
        return self.members is None or client_address[0] in self.members


class MembersRendezvous(http_server.RendezvousServer):  # type: ignore[misc]
    def start(self, handler_cls: Any = MembersHandler) -> Any:
        self._httpd, port = http_server.find_port(lambda address: MembersServer(address, handler_cls, self._verbose))
        self._listen_thread = http_server.in_thread(target=self._httpd.serve_forever)
        return port

    def init(self, host_alloc_plan: Any) -> None:
        super().init(host_alloc_plan)
        if "--network-interface" not in sys.argv:
            self._httpd.members = _FOUND | addresses_of({slot.hostname for slot in host_alloc_plan})


def addresses_of(hosts: Iterable[str]) -> frozenset[str]:
    """Return the IPv4 addresses of the hosts, and all addresses of this machine."""
    own = {part.address for parts in psutil.net_if_addrs().values() for part in parts}
    named = {entry[4][0] for host in hosts for entry in socket.getaddrinfo(host, None, socket.AF_INET)}
    return frozenset(own | {str(address) for address in named})


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # Python adds a script's directory; import only from `rankline`
    main()
