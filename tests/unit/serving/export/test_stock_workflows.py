"""What stock NVTabular saved in a process without Rankline: exported with parity, or refused by name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.serving.export.config import ExportConfig
from rankline.serving.importers.export import export_foreign
from rankline.serving.server.in_process import open_ensemble
from rankline.workflows.core.errors import ArtifactError, LoweringError
from rankline.workflows.nvt.io.workflow import load_workflow
from rankline.workflows.schema.tensor_names import NNZS, VALUES
from tests.factories import stock_workflows

pytestmark = pytest.mark.slow

REFUSED = {
    "bucketize": (ArtifactError, r"Bucketize on \['price'\] stores its boundaries in a function"),
    "hash_bucket": (LoweringError, "HashBucket hashes the row's position"),
    "hashed_cross": (LoweringError, "HashedCross hashes the row's position"),
    "categorify_buckets": (LoweringError, "Categorify.*num_buckets"),
    "lambda_on_a_feature": (LoweringError, "LambdaOp is a Python function"),
}
EXPORTED = [name for name in stock_workflows.GRAPHS if name not in REFUSED]
LABELS = {"everything": ["label"], "lambda_on_the_label": ["label"]}
"""Outputs that the model does not take."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stock")
    program = [sys.executable, "-I", "-W", "ignore", stock_workflows.__file__, str(directory / "made")]
    done = subprocess.run(program, cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return directory / "made"


def save_sum(workflow: Any, left_out: list[str], path: Path) -> Path:
    """A model that takes each column of a workflow and adds all up, each with a factor of its own."""
    import tensorflow as tf

    columns = {name: schema for name, schema in workflow.output_schema.column_schemas.items() if name not in left_out}
    specs, factors = {}, {name: 1e-3 * (place + 1) for place, name in enumerate(columns)}
    for name, schema in columns.items():
        dtype = "float32" if np.dtype(schema.dtype.to_numpy).kind == "f" else "int64"
        if schema.is_list:
            specs[name + VALUES] = tf.TensorSpec((None, None), dtype)
            specs[name + NNZS] = tf.TensorSpec((None, 1), tf.int32)
        else:
            specs[name] = tf.TensorSpec((None, 1), dtype)

    def score(**inputs: Any) -> dict[str, Any]:
        parts = [
            factors[name.removesuffix(VALUES)] * tf.reduce_sum(tf.cast(tensor, tf.float32), axis=1)
            for name, tensor in inputs.items()
            if not name.endswith(NNZS)
        ]
        return {"sum": tf.add_n(parts)[:, None]}

    function = tf.function(score).get_concrete_function(**specs)
    tf.saved_model.save(tf.Module(), str(path), signatures={"serving_default": function})
    return path


@pytest.mark.parametrize("name", EXPORTED)
def test_stock_workflow_is_served_with_parity(name: str, saved: Path, tmp_path: Path) -> None:
    sample = pq.read_table(saved / "rows.parquet")
    if name == "target_encoding":  # NVTabular asks for the target wherever it encodes
        sample = sample.append_column("label", pa.array(np.zeros(len(sample), np.float32)))
    model = save_sum(load_workflow(saved / name / "workflow"), LABELS.get(name, []), tmp_path / "model")
    ensemble = export_foreign(
        model, sample, tmp_path / "mine", ExportConfig(), name="mine", workflow=saved / name / "workflow"
    )
    with open_ensemble(ensemble) as client:
        columns = [column.name for column in client.schema.columns]
        assert "label" not in columns
        scores = client.predict(sample.select(columns))
    if name != "target_encoding":  # whose training rows have the statistics of other folds
        np.testing.assert_allclose(scores, expected(pd.read_pickle(saved / name / "made.pkl"), name), rtol=2e-5)


def expected(made: pd.DataFrame, name: str) -> np.ndarray:
    """What the model says of the columns that stock NVTabular made when it fitted the workflow."""
    total = np.zeros(len(made))
    columns = [column for column in made if column not in LABELS.get(name, [])]
    for place, column in enumerate(columns):
        values = [np.sum(v) for v in made[column]] if made[column].dtype == object else made[column].to_numpy(float)
        total += 1e-3 * (place + 1) * np.asarray(values)
    return total


@pytest.mark.parametrize("name", REFUSED)
def test_stock_workflow_that_cannot_be_served_is_refused(name: str, saved: Path, tmp_path: Path) -> None:
    error, message = REFUSED[name]
    sample = pq.read_table(saved / "rows.parquet")
    with pytest.raises(error, match=message):
        model = save_sum(load_workflow(saved / name / "workflow"), [], tmp_path / "model")
        export_foreign(
            model, sample, tmp_path / "mine", ExportConfig(), name="mine", workflow=saved / name / "workflow"
        )
    assert not (tmp_path / "mine").exists()
