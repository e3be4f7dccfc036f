import numpy as np
import pytest

from rankline.training.distributed.communicator import SOLO, Communicator, SingleProcess, join_world


def test_single_worker_exchanges_nothing() -> None:
    world: Communicator = SingleProcess()
    rows = np.arange(3.0)
    gradients = [object()]
    assert (world.rank, world.size) == (0, 1)
    assert world.all_reduce(gradients, [(3,)], max_rows=1) == gradients
    assert world.sum([1.5, 2.0]) == [1.5, 2.0]
    assert world.all_gather(rows) is rows
    assert world.all_gather_object({"rank": 0}) == [{"rank": 0}]
    world.broadcast([object()])
    with pytest.raises(RuntimeError, match="its own"), world.translate_errors(), world.propagating_errors():
        raise RuntimeError("its own")


def test_process_not_started_as_a_worker_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert join_world() is SOLO
