"""The native check of SavedModels: as strict as the one in Python, by fields as the installed TensorFlow has them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.hostile.files import saved_model
from tests.oracles.native_programs import sanitized
from tests.oracles.saved_model_fields import TABLE, table

FUZZ = Path(__file__).parents[3] / "oracles" / "native" / "fuzz_saved_model.cc"


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All operations of TensorFlow, as its C API lists them for the backend."""
    from tensorflow.python.client import pywrap_tf_session as c_api

    path = tmp_path_factory.mktemp("operations") / "operations.pb"
    path.write_bytes(c_api.TF_GetBuffer(c_api.TF_GetAllOpList()))
    return path


def checked(operations: Path, directories: list[Path], num_damaged: int = 0) -> Iterator[str]:
    """What the native check says of each directory, then what became of damaged ones."""
    done = subprocess.run(
        [sanitized(FUZZ, "saved_model"), "1", str(num_damaged), operations, *directories],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return iter(done.stdout.splitlines())


def test_the_table_is_that_of_the_installed_tensorflow() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(), "run python -m tests.oracles.saved_model_fields"


def test_hostile_models_are_refused(operations: Path, tmp_path: Path) -> None:
    cases = [case for n, case in enumerate(saved_model.FAMILY.cases()) if ": " not in case.name or n % 12 == 0]
    paths = [case.write(tmp_path / str(number)) for number, case in enumerate(cases)]
    said = dict(zip((case.name for case in cases), checked(operations, paths), strict=True))
    assert len(said) > 60
    of_variables = {name for name in said if name.startswith("variables of ")}  # whose files TensorFlow compares
    assert {name for name, line in said.items() if line == "taken"} == of_variables


def test_damaged_models_are_refused_or_read_within_their_bytes(operations: Path, tmp_path: Path) -> None:
    honest, refused, taken = checked(operations, [saved_model.write_honest(tmp_path)], 400)
    assert honest == "taken"
    assert refused.startswith("refused ")
    assert taken.startswith("taken ")
