"""The stub of Triton's Python backend, fit for NumPy 2. That models are served by it is in tests/integration."""

import importlib.util
from pathlib import Path

import pytest

from rankline.serving.server.triton_install import fit_for_numpy
from rankline.workflows.core.errors import ServerError

SPEC = importlib.util.find_spec("pytriton")
assert SPEC
assert SPEC.origin
STUBS = Path(SPEC.origin).parent / "tritonserver" / "python_backend_stubs"


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_five_reads_of_a_dtype_go_to_where_numpy_2_has_the_size(version: str) -> None:
    stub = (STUBS / version / "triton_python_backend_stub").read_bytes()
    fit = fit_for_numpy(stub)
    assert len(fit) == len(stub)
    changed = [(stub[at], fit[at]) for at in range(len(stub)) if stub[at] != fit[at]]
    assert changed == [(0x20, 0x28)] * 5


def test_one_that_knows_numpy_2_stays_as_it_is() -> None:
    stub = b"\x7fELF numpy._core.multiarray \x48\x63\x40\x20"
    assert fit_for_numpy(stub) == stub


def test_one_that_is_not_known_is_refused() -> None:
    with pytest.raises(ServerError, match=r"made for NumPy 1 and is not that of nvidia-pytriton 0\.7\.0"):
        fit_for_numpy(b"\x7fELF numpy.core.multiarray")
