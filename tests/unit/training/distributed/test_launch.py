import pytest

from rankline.training.distributed.communicator import SOLO
from rankline.training.distributed.launch import join_world


def test_a_process_that_nobody_started_as_a_worker_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert join_world() is SOLO
