import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankline.launch.worker_output import Listener, clear_logs
from rankline.workflows.core.errors import RanklineError, WorkerLostError
from tests.factories.recorders import ProgressRecord

MODEL = {"path": "work/m", "run_id": "r", "tracking_uri": "sqlite:///x"}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "workers"


@pytest.fixture
def seen() -> ProgressRecord:
    return ProgressRecord()


@pytest.fixture
def listener(logs: Path, seen: ProgressRecord) -> Iterator[Listener]:
    clear_logs(logs)
    with Listener(logs, seen, mpi=False) as listening:
        yield listening


def _record(worker: int, **facts: object) -> str:
    return f"[{worker}]<stdout>:\x1e{json.dumps(facts)}\n"


def _ended(worker: int, status: int) -> str:
    return f"Process {worker} exit with status code {status}.\n"


RULE = "-" * 74
OTHERS = "Terminating remaining workers after failure of Process 1.\n"


def test_reports_of_worker_0_are_shown_and_its_model_is_the_result(listener: Listener, seen: ProgressRecord) -> None:
    for line in (_record(0, done=1, total=4, note="epoch 1"), _record(0, model=MODEL)):
        assert not listener.take(line)
    assert seen.reports == [(1, 4, "epoch 1")]
    assert listener.result(0) == MODEL


def test_run_and_its_checkpoints_are_known(logs: Path, seen: ProgressRecord) -> None:
    clear_logs(logs)
    steps: list[int] = []
    with Listener(logs, seen, mpi=False, after_checkpoint=lambda: steps.append(listener.num_checkpoints)) as listener:
        for line in (_record(0, run_id="r"), _record(0, checkpoint_step=50), _record(0, checkpoint_step=100)):
            listener.take(line)
    assert (listener.run_id, steps) == ("r", [1, 2])


def test_each_worker_has_its_log_and_so_has_what_starts_them(listener: Listener, logs: Path) -> None:
    for line in ("[0]<stdout>:a\n", "[1]<stderr>:b\n", "[1,0]<stdout>:mpi\n", "[10]<stdout>:c\n", "starting\n"):
        listener.take(line)
    assert {log.name: log.read_text() for log in logs.iterdir()} == {
        "worker-0.log": "a\nmpi\n",
        "worker-1.log": "b\n",
        "worker-10.log": "c\n",
        "launcher.log": "starting\n",
    }


def test_logs_of_an_earlier_run_are_removed_and_those_of_a_generation_are_not(logs: Path, seen: ProgressRecord) -> None:
    logs.mkdir()
    for name in ("worker-7.log", "launcher.log", "mine.txt"):
        (logs / name).write_text("old")
    clear_logs(logs)
    assert [path.name for path in logs.iterdir()] == ["mine.txt"]
    for text in ("first", "second"):
        with Listener(logs, seen, mpi=False) as listener:
            listener.note(text)
    assert (logs / "launcher.log").read_text() == "first\nsecond\n"


@pytest.mark.parametrize(
    ("lines", "kind", "message"),
    [
        # What worker 0 says stands as it is, whoever says more.
        ([_record(1, error="no such file", is_lost=False), _record(0, error="worker 1: no such file", is_lost=False)],
         RanklineError, "^worker 1: no such file$"),
        ([_record(0, error="gone", is_lost=True), _record(1, error="no rows", is_lost=False), _ended(0, 1), OTHERS],
         RanklineError, "^worker 1: no rows$"),
        ([_record(0, error="gone", is_lost=True), _ended(1, 137), OTHERS, _ended(0, 1)],
         WorkerLostError, "^worker 1 was ended by SIGKILL, .*memory"),
        ([_ended(1, 139), OTHERS, _ended(0, 143)], WorkerLostError, "^worker 1 was ended by SIGSEGV"),
        (["[1]<stderr>:rankline: not found\n", _ended(1, 127), OTHERS, _ended(0, 143)],
         RanklineError, "^worker 1 ended with status 127: rankline: not found. Its log: .*worker-1.log$"),
        ([_ended(1, 255), OTHERS], WorkerLostError, "^worker 1 ended with status 255: no output"),
        # Asked to end, and killed as it did not: that is the one that the others waited for.
        ([_record(0, error="no answer", is_lost=True), _ended(0, 1), OTHERS, _ended(1, 137)],
         WorkerLostError, "^worker 1 did not answer"),
        ([_record(0, error="too late", is_lost=True), _ended(0, 1), OTHERS, _ended(1, 143)],
         WorkerLostError, "^too late"),
        (["ssh not successful for host b:\n", "ssh: No route to host\n", "RuntimeError: could not\n"],
         WorkerLostError, "^b cannot be reached: ssh: No route to host. `ssh b true` must work"),
        (["Traceback\n", "RuntimeError: all is lost.\n"], RanklineError, "status 1 .* all is lost. Its log: .*r.log$"),
        ([f"{line}\n" for line in ("a warning", RULE, "prterun found no", "program.", "", "NOTE:", " Node: vm", RULE)],
         RanklineError, "a model: prterun found no program. Its log: .*r.log$"),
    ],
)  # fmt: skip
def test_there_is_one_message_which_says_the_first_cause(
    listener: Listener, lines: list[str], kind: type[RanklineError], message: str
) -> None:
    for line in lines:
        listener.take(line)
    with pytest.raises(kind, match=message) as raised:
        listener.result(1)
    assert raised.type is kind  # what was lost is started again in an elastic run, what failed by itself is not


def test_somebody_has_failed_as_soon_as_it_says_so_or_ends(listener: Listener) -> None:
    assert not listener.take("[0]<stderr>:Process 1 exit with status code 1.\n")  # a worker only says it
    assert listener.take(_ended(1, 1))
    assert listener.take("[0]<stdout>:still here\n")


def test_workers_that_end_without_a_model_have_failed(listener: Listener) -> None:
    with pytest.raises(RanklineError, match="status 0 and without a model"):
        listener.result(0)
