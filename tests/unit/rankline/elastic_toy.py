"""A worker that learns nothing: `python elastic_toy.py SIZE [ACTION NUMBER MOMENT]`.

It publishes in a world of SIZE, and wants a smaller one to end. Worker NUMBER (or "any") does ACTION to itself, a
signal's name, "exit" or "strangers" (which come and have to go again), at MOMENT: "start", "world" or "trained".
"""

import json
import os
import signal
import socket
import sys
import time

from training.elastic import ADDRESS_VARIABLE, Membership, RegroupError

LINES = (b"no JSON", b"7", b"null", b"[]", b'["hello"]', b'{"hello": 7}', b'{"hello": "\xc3\xa9"}', b"[" * 900)
STRANGE = (*(line + b"\n" for line in LINES), b"x" * 2_000)  # the last one does not end


class Toy:
    def __init__(self, size: str, *fate: str) -> None:
        self.size, self.fate, self.step = int(size), fate, -1
        self.number = int(os.environ[ADDRESS_VARIABLE].rpartition(":")[2])

    def run(self) -> None:
        self.meet("start")
        membership = Membership(os.environ[ADDRESS_VARIABLE])
        while (place := membership.join(self.step)) is not None:
            told = {"number": self.number, "rank": place.rank, "size": place.size, "run": place.run_id}
            print(json.dumps({**told, "is_first": place.is_first, "events": list(place.events)}), flush=True)
            self.step += 10
            self.meet("world")
            try:
                self.take_part(membership, place.rank, place.size)
            except RegroupError:
                continue
            if place.rank == 0:
                membership.tell_published()
            print("over", flush=True)
            return
        print("not needed", flush=True)

    def take_part(self, membership: Membership, rank: int, size: int) -> None:
        if rank > 0:
            membership.wait_until_published()
            return
        membership.tell_run("the run")
        if self.fate[:1] == ("SIGSTOP",) and size > 1:
            raise RegroupError("as if Horovod had given up on the other one")
        while size < self.size and not membership.is_awaited:
            time.sleep(0.01)
        if size < self.size:
            membership.tell_commit()
            raise RegroupError("somebody waits")
        membership.tell_trained()
        self.meet("trained")

    def meet(self, moment: str) -> None:
        action, number, when = self.fate or ("", "", "")
        if number not in (str(self.number), "any") or when != moment:
            return
        if action == "exit":
            sys.exit("no such option")
        if action == "strangers":
            send_strangers()
            return
        os.kill(os.getpid(), signal.Signals[action])


def send_strangers() -> None:
    """Connect and say what no worker says; each is hung up on."""
    host, port, *_ = os.environ[ADDRESS_VARIABLE].split(":")
    for line in STRANGE:
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(line)
            assert connection.recv(1) == b""


if __name__ == "__main__":
    Toy(*sys.argv[1:]).run()
