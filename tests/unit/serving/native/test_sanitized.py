"""Native checks and backends under sanitizers: as strict as in Python, whatever comes."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2 as pb

from rankline.serving.engines import engine_for
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.triton_version import Served, write_version
from rankline.workflows.plan import ANY_WIDTH, Column, ColumnSpec, Computed, KeyIndex, TransformPlan
from rankline.workflows.schema.model_artifact import SAVED_MODEL
from tests.harness.hostile.files import saved_model
from tests.oracles.native_programs import MEMORY, THREADS, sanitized
from tests.oracles.saved_model_fields import TABLE, table

pytestmark = pytest.mark.slow

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


def test_saved_model_fields_are_those_of_the_installed_tensorflow() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(), "run python -m tests.oracles.saved_model_fields"


def test_native_check_refuses_hostile_saved_models(operations: Path, tmp_path: Path) -> None:
    cases = [case for n, case in enumerate(saved_model.FAMILY.cases()) if ": " not in case.name or n % 12 == 0]
    paths = [case.write(tmp_path / str(number)) for number, case in enumerate(cases)]
    said = dict(zip((case.name for case in cases), checked(operations, paths), strict=True))
    assert len(said) > 60
    of_variables = {name for name in said if name.startswith("variables of ")}  # whose files TensorFlow compares
    assert {name for name, line in said.items() if line == "taken"} == of_variables


def test_native_check_reads_damaged_saved_models_within_their_bytes(operations: Path, tmp_path: Path) -> None:
    honest, refused, taken = checked(operations, [saved_model.write_honest(tmp_path)], 400)
    assert honest == "taken"
    assert refused.startswith("refused ")
    assert taken.startswith("taken ")


FUZZ_SHELL = Path(__file__).parents[3] / "oracles" / "native" / "fuzz_shell.cc"
STRINGS = pa.array([b"a", b"b", b"x" * 300], pa.large_binary())
PLAN = TransformPlan(
    inputs=(
        ColumnSpec(name="user", dtype="int64"),
        ColumnSpec(name="item", dtype="object"),
        ColumnSpec(name="price", dtype="float32"),
        ColumnSpec(name="history", dtype="object", width=ANY_WIDTH),
    ),
    indexes=(
        KeyIndex.build("user", np.array([0, 1, 2**40]), missing_row=4),
        KeyIndex.build("item", STRINGS, missing_row=4),
        KeyIndex.build("history", STRINGS, missing_row=4),
    ),
    columns=(
        Column(name="user", index=0, values=np.arange(5)),
        Column(name="item", index=1, values=np.arange(5)),
        Computed(name="price", source="price", dtype="float32"),
        Column(name="history", index=2, values=np.arange(5, dtype=np.int8), width=ANY_WIDTH),
    ),
)


def model(directory: Path, candidates: tuple[str, ...] = (), kind: str = "score") -> Path:
    """A step with the plan, alone or before a model, and its config as Triton hands it to a backend."""
    (directory / "none").mkdir(parents=True)
    served = Served(engine=engine_for(SAVED_MODEL), path=directory / "none")
    config = ExportConfig(max_batch_size=64, max_list_length=4, fused=kind == "score")
    write_version(directory, PLAN, served, config, name="m", version=1, candidates=candidates)
    step = directory / f"m_{kind}_v1"
    message = text_format.Parse((step / "config.pbtxt").read_text(encoding="utf-8"), pb.ModelConfig())
    del message.parameters["MANIFEST"]
    document = json_format.MessageToDict(message, preserving_proto_field_name=True)
    (step / "config.json").write_text(json.dumps(document), encoding="utf-8")
    return step


@pytest.mark.parametrize(("by", "threads"), [(MEMORY, "1"), (THREADS, "2")], ids=["memory", "threads"])
def test_native_backend_answers_odd_requests_alone_as_among_others(tmp_path: Path, by: str, threads: str) -> None:
    models = [
        model(tmp_path / "rows"),
        model(tmp_path / "candidates", ("item", "price")),
        model(tmp_path / "workflow", kind="transform"),
    ]
    done = subprocess.run(
        [sanitized(FUZZ_SHELL, "plan", "triton", by=by), "1", "150", "4000", threads, *models],
        env={"ASAN_OPTIONS": "allocator_may_return_null=1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    became = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert min(int(became[what]) for what in ("answered", "refused", "cancelled", "refused to load")) > 20
