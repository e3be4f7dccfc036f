import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import psutil
import pytest

from rankline.elastic import ElasticConfig, ElasticRun, _Store, main
from rankline.elastic_hosts import FixedHosts
from workflows.errors import ConfigError, RanklineError

TOY = Path(__file__).with_name("elastic_toy.py")
ROOT = Path(__file__).parents[3]


def run(toy: list[str], remarks: list[str] | None = None, **changes: Any) -> None:
    """Run two toys, or as many as `changes` say."""
    choices: dict[str, Any] = {"workers": 2, "min_workers": 1, "max_workers": 2, "hosts": FixedHosts({"localhost": 2})}
    config = ElasticConfig(command=(sys.executable, str(TOY), *toy), **{**choices, **changes})
    ElasticRun(config, tell=(remarks if remarks is not None else []).append).run()


def worlds(out: str) -> list[dict[str, Any]]:
    """Who was in which world, in order of what they wrote."""
    return [json.loads(line.partition(">:")[2]) for line in out.splitlines() if "{" in line]


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield
    assert [child for child in psutil.Process().children() if TOY.name in " ".join(child.cmdline())] == []


def test_a_worker_that_dies_before_it_joins_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    remarks: list[str] = []
    run(["2", "SIGKILL", "0", "start"], remarks)
    assert remarks == [
        "worker 0 on localhost was lost (signal 9)",
        "a world of 2: worker 1 on localhost, worker 2 on localhost",
    ]
    first = worlds(capsys.readouterr().out)[0]
    assert (first["size"], first["is_first"], first["run"]) == (2, True, None)


def test_another_worker_takes_over_when_worker_0_dies_while_it_publishes(capsys: pytest.CaptureFixture[str]) -> None:
    run(["1", "SIGKILL", "0", "trained"])
    last = worlds(capsys.readouterr().out)[-1]
    assert last["events"] == ["worker 0 on localhost was lost (signal 9)"]
    assert (last["number"], last["rank"], last["run"], last["is_first"]) == (1, 0, "the run", False)


def test_a_world_ends_for_a_worker_that_waits_and_the_one_with_the_commit_leads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(["2"], workers=1)
    seen = worlds(capsys.readouterr().out)
    assert [place["size"] for place in seen] == [1, 2, 2]
    assert {place["number"] for place in seen[1:] if place["rank"] == 0} == {seen[0]["number"]}


def test_a_worker_that_does_not_answer_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    remarks: list[str] = []
    run(["1", "SIGSTOP", "1", "world"], remarks, timeout_s=1.0)
    assert {"worker 1 on localhost does not answer", "worker 1 on localhost was lost (signal 9)"} <= {*remarks}
    assert worlds(capsys.readouterr().out)[-1]["number"] == 0


@pytest.mark.parametrize("moment", ["start", "trained"])
def test_a_worker_that_fails_by_itself_ends_the_run(capsys: pytest.CaptureFixture[str], moment: str) -> None:
    with pytest.raises(RanklineError, match="worker 0 on localhost ended with exit code 1"):
        run(["1", "exit", "0", moment], workers=1, max_workers=1)
    assert "[0]<stderr>:no such option" in capsys.readouterr().err


def test_strangers_are_hung_up_on_and_the_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    remarks: list[str] = []
    run(["1", "strangers", "0", "world"], remarks, workers=1, max_workers=1)
    assert remarks == ["a world of 1: worker 0 on localhost"]
    assert "[0]<stdout>:over" in capsys.readouterr().out


def test_workers_that_die_again_and_again_end_the_run() -> None:
    with pytest.raises(RanklineError, match="5 workers died since the last commit, the last one by signal 9"):
        run(["1", "SIGKILL", "any", "start"], workers=1, max_workers=1)


def test_the_command_line_ends_its_workers_when_it_is_ended() -> None:
    command = [sys.executable, "-m", "rankline.elastic", "-np", "1", "--min", "1", "--max", "1", "--"]
    with subprocess.Popen([*command, sys.executable, str(TOY), "2"], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b'[0]<stdout>:{"number": 0')
        (worker,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 130
    assert not worker.is_running()


def test_workers_end_when_what_started_them_is_killed() -> None:
    command = [sys.executable, "-m", "rankline.elastic", "-np", "1", "--min", "1", "--max", "1", "--"]
    with subprocess.Popen([*command, sys.executable, str(TOY), "2"], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (worker,) = psutil.Process(process.pid).children()
        process.kill()
    worker.wait(20)
    assert not worker.is_running()


def test_the_store_keeps_what_is_put_until_it_is_cleared() -> None:
    with _Store("127.0.0.1") as store:
        url = f"http://127.0.0.1:{store.port}/global/0"
        with pytest.raises(HTTPError, match="404"):
            urllib.request.urlopen(url)
        for method in ("PUT", "DELETE"):
            request = urllib.request.Request(url, data=os.urandom(3) if method == "DELETE" else b"abc", method=method)
            with urllib.request.urlopen(request):
                pass
        with urllib.request.urlopen(url) as answer:
            assert answer.read() == b"abc"
        store.clear()
        with pytest.raises(HTTPError, match="404"):
            urllib.request.urlopen(url)


@pytest.mark.parametrize(("fewest", "number", "most"), [(0, 1, 1), (2, 1, 2), (1, 3, 2)])
def test_numbers_that_contradict_each_other_are_refused(fewest: int, number: int, most: int) -> None:
    with pytest.raises(ConfigError, match="expected 1 ≤ min_workers ≤ workers ≤ max_workers"):
        run(["1"], min_workers=fewest, workers=number, max_workers=most)


@pytest.mark.parametrize("interface", [(), ("--network-interface", "lo")])
def test_workers_elsewhere_need_an_interface(capsys: pytest.CaptureFixture[str], interface: tuple[str, ...]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["-np", "1", "--min", "1", "--max", "1", "-H", "192.0.2.1", *interface, "--", "true"]) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "192.0.2.1 is another machine" in capsys.readouterr().err
