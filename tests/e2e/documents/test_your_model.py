"""docs/guide/your-model.md: its commands and snippets, on files made as it says; and the notebook, run as it stands."""

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rankline
from rankline.serving.client import Client
from rankline.workflows.nvt.compat import ops
from rankline.workflows.nvt.io.workflow import save_workflow
from tests.harness.commands.command_line import commands, served, started, typed
from tests.harness.process.programs import leave_installed
from tests.oracles.nvtabular import fitted, transformed

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "guide" / "your-model.md").read_text(encoding="utf-8")
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
SAVE, ASK, SAVE_TREES = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
(ENTRY_POINT,) = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
EXPORT, PREDICT, SERVE, BENCH, *REPLACE, EXPORT_TREES, EXPORT_LAMBDA, VERSIONS, ROLLBACK = commands(DOCUMENT)
EXPORT_NEXT, PROMOTE = REPLACE
BRIEFLY = "--batch-sizes 1 --min-duration-s 1.5 --time-limit-s 1.5 --window-s 0.25"
NUMBERS = ["age", "months"]


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = {"city": rng.choice(["Oslo", "Zürich", "東京"], 600), "age": rng.integers(18, 80, 600).astype(float)}
    return pd.DataFrame({**rows, "months": rng.integers(0, 60, 600), "churned": rng.integers(0, 2, 600)})


def graph(function: Any = None) -> Any:
    """As in a notebook, with the label made by a lambda."""
    ages = ["age"] >> (ops.LambdaOp(function, dtype=np.float64) if function else ops.Normalize())
    columns = (["city"] >> ops.Categorify()) + ages + (["months"] >> ops.Normalize())
    return columns + (["churned"] >> ops.LambdaOp(lambda column: column.astype("float32")))


def keras_model() -> Any:
    import tf_keras as keras

    keras.utils.set_random_seed(0)
    inputs = [keras.Input((1,), name=name, dtype="int64" if name == "city" else None) for name in ("city", *NUMBERS)]
    cities = keras.layers.Flatten()(keras.layers.Embedding(8, 4)(inputs[0]))
    merged = keras.layers.Concatenate()([cities, *inputs[1:]])
    return keras.Model(inputs, keras.layers.Dense(1, "sigmoid", name="churn")(merged))


def booster(frame: pd.DataFrame) -> Any:
    import lightgbm

    rows = lightgbm.Dataset(frame[NUMBERS].rename(columns={"age": "Age"}), frame["churned"])
    return lightgbm.train({"objective": "binary", "num_leaves": 4, "verbose": -1}, rows, 3)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where all snippets and commands were run, but those that need a server."""
    path = tmp_path_factory.mktemp("your-model")
    frame = table()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        names = {
            "workflow": fitted(graph, frame, path / "scratch"),
            "model": keras_model(),
            "frame": frame,
            "booster": booster(frame),
        }
        for snippet in (SAVE, SAVE_TREES):
            exec(compile(snippet, "docs/guide/your-model.md", "exec"), names)
        for command in (EXPORT, PREDICT, EXPORT_TREES):
            typed(command, path)
        yield path


def test_file_is_scored_as_in_the_notebook(workplace: Path) -> None:
    scored = pq.read_table(workplace / "scored.parquet")
    assert scored.column_names == [*table(), "score_churn"]
    encoded = pd.DataFrame(transformed(fitted(graph, table(), workplace / "again"), table()))
    inputs = [encoded[name].to_numpy()[:, None] for name in ("city", *NUMBERS)]
    np.testing.assert_allclose(scored["score_churn"], keras_model().predict(inputs, verbose=0)[:, 0], atol=1e-5)


def test_model_alone_is_scored_from_a_column_that_is_called_otherwise(workplace: Path) -> None:
    frame = table()
    scores = rankline.predict("churn", frame)["score"]
    np.testing.assert_allclose(scores, booster(frame).predict(frame[NUMBERS]), rtol=1e-5)
    lacking = pa.table({"age": [30.0, None], "months": [None, 3]})
    expected = booster(frame).predict([[30.0, np.nan], [np.nan, 3.0]])
    np.testing.assert_allclose(rankline.predict("churn", lacking)["score"], expected, rtol=1e-5)


def test_server_is_asked_and_measured(workplace: Path) -> None:
    frame = table().head(50)
    with served(SERVE, workplace) as (_, url):
        assert '"127.0.0.1:8001"' in ASK
        names: dict[str, Any] = {"frame": frame}
        exec(compile(ASK.replace("127.0.0.1:8001", url), "docs/guide/your-model.md", "exec"), names)
        measured = typed(f"{BENCH} --url {url} {BRIEFLY}", workplace)
        with Client(url, "mine") as client:
            assert {column.name for column in client.schema.columns} == {"city", *NUMBERS}
    expected = pq.read_table(workplace / "scored.parquet")["score_churn"][:50]
    np.testing.assert_allclose(names["scored"]["score_churn"], expected, atol=1e-5)
    assert "p50 ms" in measured


def test_newer_version_is_tried_and_taken_back(workplace: Path) -> None:
    assert "version 2" in typed(EXPORT_NEXT, workplace)
    for command, number in (("", "1"), (PROMOTE, "2"), (ROLLBACK, "1")):
        if command:
            typed(command, workplace)
        assert active(workplace) == number


def test_lambda_of_an_installed_package_runs(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = workplace / "package"
    (package / "shop").mkdir(parents=True)
    (package / "shop" / "__init__.py").touch()
    (package / "shop" / "features.py").write_text("def decade(column):\n    return column // 10\n")
    section = ENTRY_POINT.replace('[project.entry-points."rankline.functions"]', "[rankline.functions]")
    leave_installed(package, "shop", section.replace('"', ""))
    monkeypatch.syspath_prepend(package)
    decade = importlib.import_module("shop.features").decade
    save_workflow(fitted(lambda: graph(decade), table(), workplace / "other"), workplace / "saved" / "with_lambda")
    process = started(f"PYTHONPATH={ROOT}:{package} {EXPORT_LAMBDA}", workplace)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "not compiled: LambdaOp" in output
    assert "version 3" in output
    assert active(workplace) == "3"
    typed(ROLLBACK, workplace)
    assert active(workplace) == "1"


def active(workplace: Path) -> str:
    (line,) = (line for line in typed(VERSIONS, workplace).splitlines() if "active" in line)
    return line.split()[0]


def test_notebook_runs_but_for_the_time_that_training_may_take(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert code.count("rankline.train(data)") == 1
    code = code.replace("rankline.train(data)", "rankline.train(data, time_limit=5)")
    shown = (
        "import sys; sys.ps1 = '>>> '",  # as in a notebook, where TensorFlow says more
        code,
        "print(json.dumps([list(data.columns['role']), trained.metrics['valid_auc'], scored['score'].tolist(),",
        "    table['score'].to_pylist(), float(np.abs(ours - theirs).max()), mine.version, ensemble.name]))",
    )
    program = "import json\n" + "\n".join(shown)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tensorflow" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    roles, auc, scored, of_table, difference, version, name = json.loads(done.stdout.splitlines()[-1])
    assert (roles, version, name) == (["label", "categorical", "numeric", "numeric"], 1, "churn")
    assert auc > 0.65
    assert scored == pytest.approx(of_table)
    assert difference < 1e-5


def test_notebook_was_run_and_names_no_machine() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not re.search(r"/tmp/|/home/|/root/|Traceback|Warning:", text)
