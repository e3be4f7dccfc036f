"""An ensemble in this process: the steps that Triton would run, on what the client lays out."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankline.serving.engines import Engine
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.triton_version import Served, write_version
from rankline.serving.repository.ensemble import ExportedEnsemble, publish_version
from rankline.serving.server.in_process import open_ensemble, unknown_columns
from rankline.workflows.core.errors import ArtifactError, RequestError
from rankline.workflows.plan import ANY_WIDTH, Column, ColumnSpec, Computed, KeyIndex, TransformPlan
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
    "tags": [["a"], [], ["é"], [], []],  # of the shape [num_rows, 1] on the wire, as single texts are
}
ROW = {"word": ["a"], "item": [1], "history": [[1]], "tags": [["a"]]}
SCORES = [1 + 20 + 1 + 1, 2 + 7 + 3 + 2, 3 + 30 + 3 + 1 + 2 + 1, 4 + 7, 5 + 10 + 3 + 3]


@pytest.mark.parametrize("fused", [False, True])
def test_in_process_scores_strings_lists_and_missing_values(tmp_path: Path, adder: Engine, fused: bool) -> None:
    with open_ensemble(export(tmp_path / "models", adder, fused=fused)) as client:
        assert client.predict(ROWS).tolist() == SCORES
        assert client.predict(pa.table(ROWS)).tolist() == SCORES
        assert client.predict({name: column[:0] for name, column in ROWS.items()}).tolist() == []


def test_rank_scores_candidates_of_one_row(tmp_path: Path, adder: Engine) -> None:
    with open_ensemble(export(tmp_path / "models", adder, fused=False, candidates=("item",))) as client:
        assert client.rank({"word": "a", "history": [1, 2], "tags": []}, range(1, 6)).tolist() == [26, 27, 28, 29, 30]


def test_in_process_refuses_what_a_server_refuses(tmp_path: Path, adder: Engine) -> None:
    with open_ensemble(export(tmp_path / "models", adder, fused=False)) as client:
        with pytest.raises(RequestError, match="lists of 5 values, expected at most 4"):
            client.predict({**ROW, "history": [[1] * 5]})
        with pytest.raises(RequestError, match="^adder failed to score the rows: id 91 is not in the table$"):
            client.predict({**ROW, "item": [91]})


def test_in_process_runs_the_given_version(tmp_path: Path) -> None:
    publish_tiny(tmp_path, 10)
    first = ExportedEnsemble.load(tmp_path)
    with open_ensemble(publish_tiny(tmp_path, 20)) as client:
        assert client.predict({"x": [0, 4, 9]}).tolist() == [20, 24, UNSEEN]
    with open_ensemble(first) as client:
        assert client.predict({"x": [0]}).tolist() == [10]


def test_in_process_refuses_damaged_files(tmp_path: Path) -> None:
    ensemble = publish_tiny(tmp_path, 10)
    damage(ensemble, "predict")
    with pytest.raises(ArtifactError, match="does not match its checksum"):
        open_ensemble(ensemble)


def test_in_process_names_columns_of_unknown_values(tmp_path: Path, adder: Engine) -> None:
    with open_ensemble(export(tmp_path / "models", adder, fused=False)) as client:
        assert unknown_columns(client, ROWS) == []
        assert unknown_columns(client, {**ROW, "word": ["A"]}) == ["word"]
