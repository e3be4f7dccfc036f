import os
import subprocess
import sys

import numpy as np
import pytest

from training.world import SOLO, Solo, World, current_world


def test_a_process_that_nobody_started_as_a_worker_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert current_world() is SOLO


def test_a_worker_alone_exchanges_with_nobody() -> None:
    world: World = Solo()
    rows = np.arange(3.0)
    gradients = [object(), None]
    assert (world.rank, world.size) == (0, 1)
    assert world.total(gradients, [(3,), (3,)], most_rows=1) == gradients
    assert world.sum([1.5, 2.0]) == [1.5, 2.0]
    assert world.gathered(rows) is rows
    assert world.all_of({"rank": 0}) == [{"rank": 0}]
    world.broadcast([object()])
    world.explain(RuntimeError("Horovod has been shut down"))
    with pytest.raises(RuntimeError, match="its own"), world.together():
        raise RuntimeError("its own")


def test_it_imports_neither_tensorflow_nor_horovod() -> None:
    code = "import sys, training.world; print([m for m in ('tensorflow', 'horovod') if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert ran.stdout.strip() == "[]"
