"""What all native backends share, with a host in Triton's place: odd requests, among others and from two threads."""

import json
import subprocess
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
from tests.oracles.native_programs import MEMORY, THREADS, sanitized

FUZZ = Path(__file__).parents[3] / "oracles" / "native" / "fuzz_shell.cc"
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
def test_odd_requests_are_answered_or_refused_alone_as_among_others(tmp_path: Path, by: str, threads: str) -> None:
    models = [
        model(tmp_path / "rows"),
        model(tmp_path / "candidates", ("item", "price")),
        model(tmp_path / "workflow", kind="transform"),
    ]
    done = subprocess.run(
        [sanitized(FUZZ, "plan", "triton", by=by), "1", "150", "4000", threads, *models],
        env={"ASAN_OPTIONS": "allocator_may_return_null=1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    became = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert min(int(became[what]) for what in ("answered", "refused", "cancelled", "refused to load")) > 20
