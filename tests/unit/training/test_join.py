import os
import subprocess
import sys

import pytest

from training.join import join_world
from training.world import SOLO


def test_a_process_that_nobody_started_as_a_worker_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert join_world() is SOLO


def test_it_imports_neither_tensorflow_nor_horovod() -> None:
    code = "import sys, training.join; print([m for m in ('tensorflow', 'horovod') if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert ran.stdout.strip() == "[]"
