import numpy as np
import pytest

from rankline.training.distributed.communicator import Solo, World


def test_a_worker_alone_exchanges_with_nobody() -> None:
    world: World = Solo()
    rows = np.arange(3.0)
    gradients = [object()]
    assert (world.rank, world.size) == (0, 1)
    assert world.all_reduce(gradients, [(3,)], most_rows=1) == gradients
    assert world.sum([1.5, 2.0]) == [1.5, 2.0]
    assert world.all_gather(rows) is rows
    assert world.all_gather_object({"rank": 0}) == [{"rank": 0}]
    world.broadcast([object()])
    with pytest.raises(RuntimeError, match="its own"), world.explained(), world.propagating_errors():
        raise RuntimeError("its own")
