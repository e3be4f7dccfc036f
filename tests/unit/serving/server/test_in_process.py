"""An ensemble in this process: the steps that Triton would run, on what the client lays out."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pytest

from rankline.serving.engines import Engine, engines
from rankline.serving.export.config import WIDE, ExportConfig
from rankline.serving.export.triton_version import Served, write_version
from rankline.serving.repository.ensemble import ExportedEnsemble, publish_version
from rankline.serving.server.in_process import open_ensemble, unknown_columns
from rankline.workflows.core.errors import ArtifactError, RequestError
from rankline.workflows.plan import ANY_WIDTH, Column, ColumnSpec, Computed, KeyIndex, TransformPlan
from rankline.workflows.schema.tensor_names import SCORE
from tests.factories.ensembles import UNSEEN, damage, publish_tiny

WORDS = pa.array([b"", b"a", "é".encode()], pa.large_binary())


@pytest.fixture
def adder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose score is the sum of all that it gets, lengths of lists too, and which takes no id above 90."""
    package = tmp_path / "packages" / "adder"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "offline.py").write_text(
        "import numpy as np\n"
        "class Model:\n"
        "    def __init__(self, path):\n"
        "        self.path = path\n"
        "    def served_call(self, names):\n"
        "        def call(*arrays):\n"
        "            if max(array.max(initial=0) for array in arrays) > 90:\n"
        "                raise IndexError('id 91 is not in the table\\nat line 1')\n"
        "            at = list(names).index('item')\n"
        "            rest = sum(a.sum(1, keepdims=True) for i, a in enumerate(arrays) if i != at)\n"
        "            return [(arrays[at] + rest).astype(np.float32)]\n"
        "        return call\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    engine = Engine(name="adder", package="adder", format="model.adder")
    monkeypatch.setattr("rankline.serving.server.in_process.engine_of_backend", {"adder": engine}.__getitem__)
    monkeypatch.setattr("rankline.serving.repository.ensemble.backend_names", lambda: ("nvtabular", "adder"))
    monkeypatch.setattr("rankline.serving.repository.ensemble.engines", lambda: {"adder": engine})
    return engine


def plan_of() -> TransformPlan:
    """Words and numbers of a user, lists of both, and the item to score."""
    return TransformPlan(
        inputs=(
            ColumnSpec(name="word", dtype="object"),
            ColumnSpec(name="item", dtype="int64"),
            ColumnSpec(name="history", dtype="int64", width=ANY_WIDTH),
            ColumnSpec(name="tags", dtype="object", width=ANY_WIDTH),
        ),
        indexes=(KeyIndex.build("word", WORDS), KeyIndex.build("tags", WORDS)),
        columns=(
            Column(name="word", index=0, values=np.array([7, 10, 20, 30])),
            Column(name="tags", index=1, values=np.array([0, 0, 1, 2]), width=ANY_WIDTH),
            Computed(name="item", source="item", dtype="int64"),
            Computed(name="history", source="history", dtype="int64", width=ANY_WIDTH),
        ),
    )


def export(path: Path, engine: Engine, *, fused: bool, candidates: tuple[str, ...] = ()) -> ExportedEnsemble:
    model = path.parent / engine.format
    model.write_text("")
    config = ExportConfig(fused=fused, max_batch_size=3, max_list_length=4)
    with publish_version(path, "sum", made_from={}, details={}, keep=2) as new:
        write_version(
            new.directory,
            plan_of(),
            Served(engine=engine, path=model),
            config,
            name="sum",
            version=new.number,
            candidates=candidates,
        )
    return ExportedEnsemble.load(path)


ROWS: dict[str, list[Any]] = {
    "word": ["a", None, "é", "new", ""],
    "item": [1, 2, 3, 4, 5],
    "history": [[], [1, 2], [3], [], [1, 1, 1]],
    "tags": [
        ["a"],
        [],
        ["é"],
        [],
        [],
    ],  # no list is longer than one: of a wire's shape [num_rows, 1], as single texts are
}
ROW = {"word": ["a"], "item": [1], "history": [[1]], "tags": [["a"]]}
SCORES = [1 + 20 + 1 + 1, 2 + 7 + 3 + 2, 3 + 30 + 3 + 1 + 2 + 1, 4 + 7, 5 + 10 + 3 + 3]


@pytest.mark.parametrize("fused", [False, True])
def test_strings_lists_and_missing_values_are_scored_in_as_many_runs_as_a_server_takes(
    tmp_path: Path, adder: Engine, fused: bool
) -> None:
    with open_ensemble(export(tmp_path / "models", adder, fused=fused)) as client:
        assert client.predict(ROWS).tolist() == SCORES
        assert client.predict(pa.table(ROWS)).tolist() == SCORES
        assert client.predict({name: column[:0] for name, column in ROWS.items()}).tolist() == []


def test_a_wide_table_goes_through_its_relay_and_the_step_behind(tmp_path: Path) -> None:
    names = [f"x{number}" for number in range(WIDE)]
    make = onnx.helper
    *takes, gives = (
        make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, 1]) for name in (*names, "word", SCORE)
    )
    graph = make.make_graph([make.make_node("Sum", [*names, "word"], [SCORE])], "sum", takes, [gives])
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")
    plan = TransformPlan(
        inputs=(*(ColumnSpec(name=name, dtype="float32") for name in names), ColumnSpec(name="word", dtype="object")),
        indexes=(KeyIndex.build("word", WORDS),),
        columns=(
            *(Computed(name=name, source=name, dtype="float32") for name in names),
            Column(name="word", index=0, values=np.array([7, 10, 20, 30], np.float32)),
        ),
    )
    served = Served(engine=engines()["onnx"], path=tmp_path / "model.onnx")
    with publish_version(tmp_path / "models", "wide", made_from={}, details={}, keep=2) as new:
        write_version(new.directory, plan, served, ExportConfig(), name="wide", version=new.number)
    ensemble = ExportedEnsemble.load(tmp_path / "models")
    assert ensemble.steps == ("wide_relay_v1", "wide_score_v1")
    rows: dict[str, list[Any]] = {**{name: [1.0, 2.0] for name in names}, "word": ["a", "new"]}
    with open_ensemble(ensemble) as client:
        assert client.predict(rows).tolist() == [WIDE + 20, 2 * WIDE + 7]
        assert unknown_columns(client, rows) == []
        assert unknown_columns(client, {**rows, "word": ["A", "new"]}) == ["word"]


def test_candidates_share_a_row(tmp_path: Path, adder: Engine) -> None:
    with open_ensemble(export(tmp_path / "models", adder, fused=False, candidates=("item",))) as client:
        assert client.rank({"word": "a", "history": [1, 2], "tags": []}, range(1, 6)).tolist() == [26, 27, 28, 29, 30]


def test_what_a_server_refuses_is_refused(tmp_path: Path, adder: Engine) -> None:
    with open_ensemble(export(tmp_path / "models", adder, fused=False)) as client:
        with pytest.raises(RequestError, match="lists of 5 values, expected at most 4"):
            client.predict({**ROW, "history": [[1] * 5]})
        with pytest.raises(RequestError, match="^adder could not run the rows: id 91 is not in the table$"):
            client.predict({**ROW, "item": [91]})


def test_the_steps_of_the_active_version_run(tmp_path: Path) -> None:
    publish_tiny(tmp_path, 10)
    first = ExportedEnsemble.load(tmp_path)
    with open_ensemble(publish_tiny(tmp_path, 20)) as client:
        assert client.predict({"x": [0, 4, 9]}).tolist() == [20, 24, UNSEEN]
    with open_ensemble(first) as client:
        assert client.predict({"x": [0]}).tolist() == [10]


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    ensemble = publish_tiny(tmp_path, 10)
    step = tmp_path / ensemble.steps[0] / "1"
    shutil.copy(step / "plan" / "plan.json", step / "more.json")
    with pytest.raises(ArtifactError, match="is not in the manifest"):
        open_ensemble(ensemble)
    (step / "more.json").unlink()
    damage(ensemble, "predict")
    with pytest.raises(ArtifactError, match="does not match its checksum"):
        open_ensemble(ensemble)
