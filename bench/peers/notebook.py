"""Workflows and models as saved by a notebook that uses only NVTabular, NVIDIA's layers and Keras.

`python -m bench.peers.notebook DIRECTORY NUM_ROWS [MODULE:FUNCTION]` writes DIRECTORY/workflow, DIRECTORY/model and
DIRECTORY/rows.parquet. It needs its own process, because NVIDIA's layers use the Keras of `tf.keras`.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular

GENRES = ["Action", "Adventure", "Animation", "Comedy", "Crime", "Documentary", "Drama", "Fantasy", "Horror", "Romance"]
"""Genres of generated movies."""

_EMBEDDING_DIMS = {"userId": 512, "movieId": 512, "genres": 16}  # from the notebook
_HIDDEN = (128, 128, 128)


def make(directory: Path, num_rows: int, function: str = "", *, path: Path | None = None) -> None:
    """Run the notebook in its own process, with a LambdaOp of `function` (MODULE:FUNCTION in `path`) if given."""
    paths = [str(path)] if path else []
    environment = {
        **os.environ,
        "TF_USE_LEGACY_KERAS": "1",
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, sys.path)]),
    }
    program = [sys.executable, "-W", "ignore", "-m", __name__, str(directory), str(num_rows), function]
    subprocess.run(program, env=environment, check=True, stderr=subprocess.DEVNULL)


def generate(num_rows: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return ratings with a column `age`, on average 4 per user and 20 per movie, and the genres of the movies."""
    num_users, num_movies = num_rows // 4, num_rows // 20
    rng = np.random.default_rng(0)
    genres = [list(rng.choice(GENRES, n, replace=False)) for n in rng.integers(1, 5, num_movies)]
    movies = pd.DataFrame({"movieId": np.arange(1, num_movies + 1), "genres": genres})
    ratings = {
        "userId": rng.integers(1, num_users + 1, num_rows),
        "movieId": rng.integers(1, num_movies + 1, num_rows),
        "age": rng.integers(18, 80, num_rows),
        "rating": rng.integers(1, 11, num_rows) / 2,
    }
    return pd.DataFrame(ratings), movies


def save_workflow(
    ratings: pd.DataFrame, movies: pd.DataFrame, directory: Path, function: Callable[[Any], Any] | None = None
) -> nvt.Workflow:
    """Fit and save the notebook's workflow with NVTabular, including its LambdaOp on the label."""
    with quiet_nvtabular():
        joined = ["userId", "movieId"] >> ops.JoinExternal(movies, on=["movieId"])
        columns = joined >> ops.Categorify(out_path=str(directory.with_name(f"{directory.name}-scratch")))
        columns += nvt.ColumnSelector(["rating"]) >> ops.LambdaOp(lambda column: (column > 3).astype("int8"))
        if function is not None:
            columns += ["age"] >> ops.LambdaOp(function, dtype=np.float32)
        workflow = nvt.Workflow(columns).fit(nvt.Dataset(ratings))
        workflow.save(str(directory))
    return workflow


def save_model(workflow: nvt.Workflow, directory: Path, *, with_age: bool = False) -> None:
    """Save the notebook's model with Keras: NVTabular's `DenseFeatures` and three dense layers.

    Its inputs have the shapes that merlin-systems 23.8 can send: [rows], and lists with offsets. The layer gets the
    same inputs as in the notebook: [rows, 1] and list lengths.
    """
    import tensorflow as tf
    import tf_keras as keras

    with quiet_nvtabular():  # prints advice to use other models
        from nvtabular.framework_utils.tensorflow.layers import DenseFeatures
        from nvtabular.ops import get_embedding_sizes

    singles, lists = get_embedding_sizes(workflow)
    inputs = {name: keras.Input(name=name, dtype=tf.int64, shape=()) for name in ("userId", "movieId")}
    values = keras.Input(name="genres__values", dtype=tf.int64, shape=())
    offsets = keras.Input(name="genres__offsets", dtype=tf.int32, shape=())
    features = {name: entry[:, None] for name, entry in inputs.items()}
    features |= {"genres": (values[:, None], (offsets[1:] - offsets[:-1])[:, None])}
    columns = [
        tf.feature_column.embedding_column(
            tf.feature_column.categorical_column_with_identity(name, size), _EMBEDDING_DIMS[name]
        )
        for name, (size, _) in {**singles, **lists}.items()
    ]
    taken = [*inputs.values(), values, offsets]
    x = DenseFeatures(columns)(features)
    if with_age:
        taken.append(keras.Input(name="age", dtype=tf.float32, shape=()))
        x = tf.concat([x, taken[-1][:, None]], axis=1)
    for units in _HIDDEN:
        x = keras.layers.Dense(units, activation="relu")(x)
    output = keras.layers.Dense(1, activation="sigmoid", name="output")(x)
    keras.Model(inputs=taken, outputs=output).save(str(directory))


def export_with_merlin(directory: Path, target: Path) -> None:
    """Export the notebook's output with merlin-systems, after removing the label as its documentation does."""
    from rankline.serving.engines.merlin_operators import Ensemble, TransformWorkflow, merlin_operator

    target.mkdir()
    with quiet_nvtabular():
        serving = nvt.Workflow.load(str(directory / "workflow")).remove_inputs(["rating"])
        scorer = merlin_operator("tensorflow", "PredictTensorflow")(str(directory / "model"))
        graph = serving.input_schema.column_names >> TransformWorkflow(serving) >> scorer
        Ensemble(graph, serving.input_schema).export(str(target))


def main(directory: Path, num_rows: int, function: str) -> None:
    module, _, name = function.partition(":")
    ratings, movies = generate(num_rows)
    workflow = save_workflow(
        ratings, movies, directory / "workflow", getattr(import_module(module), name) if function else None
    )
    save_model(workflow, directory / "model", with_age=bool(function))
    sent = ["userId", "movieId", *(["age"] if function else [])]
    ratings[sent].to_parquet(directory / "rows.parquet", index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
