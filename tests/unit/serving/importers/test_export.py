"""A workflow and a model of somebody else, exported, and what is refused before anything is."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from onnx import parser

from rankline.serving.export.config import ExportConfig
from rankline.serving.importers import open_model
from rankline.serving.importers.export import export_foreign
from rankline.serving.importers.input_binding import Input
from rankline.serving.importers.torch_script import quiet_torch
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.in_process import open_ensemble
from rankline.workflows.core.errors import (
    ArtifactError,
    ConfigError,
    DataError,
    ExportError,
    ParityError,
    RanklineError,
    RequestError,
)
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import save_workflow
from rankline.workflows.nvt.operators import GreaterThan, PaddedListSlice
from rankline.workflows.schema.model_artifact import KIND, SAVED_MODEL
from rankline.workflows.schema.tensor_names import NNZS, VALUES
from rankline.workflows.storage.artifacts import publish
from tests.factories.importable_models import expected, save_saved_model
from tests.oracles.nvtabular import AtTimes, fitted, transformed

INPUTS = (
    Input(name="user", dtype="int64", shape=(None, 1)),
    Input(name="price", dtype="float32", shape=(None,)),
    Input(name="tags" + VALUES, dtype="int64", shape=(None, 1)),
    Input(name="tags" + NNZS, dtype="int64", shape=(None, 1)),
)
ROWS = pd.DataFrame(
    {
        "user": [11, 22, 33, 11, 44] * 20,
        "price": np.linspace(-2, 9, 100),
        "tags": [["a", "b"], ["b"], ["c", "a", "b"], ["a"], ["d"]] * 20,
        "rating": [1.0, 5.0, 4.0, 2.0, 3.0] * 20,
    }
)
SAMPLE = pa.Table.from_pandas(ROWS[["user", "price", "tags"]])


def graph() -> Any:
    ids = ["user", "tags"] >> ops.Categorify()
    return ids + (["price"] >> ops.Clip(min_value=0) >> ops.LogOp()) + (["rating"] >> GreaterThan(3.0))


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a notebook saves it: the label is in it, too."""
    directory = tmp_path_factory.mktemp("saved") / "workflow"
    save_workflow(fitted(graph, ROWS, directory.with_name("scratch")), directory)
    return directory


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_saved_model(INPUTS, tmp_path_factory.mktemp("model") / "saved")


@pytest.fixture
def export(tmp_path: Path, workflow: Path, model: Path) -> Callable[..., ExportedEnsemble]:
    def run(model: Path = model, sample: pa.Table = SAMPLE, **options: Any) -> ExportedEnsemble:
        options = {"workflow": workflow, "name": "mine", **options}
        return export_foreign(model, sample, tmp_path / "repository" / "mine", ExportConfig(), **options)

    return run


def test_exported_workflow_and_model_score_raw_rows_without_the_label(
    export: Callable[..., ExportedEnsemble], workflow: Path
) -> None:
    ensemble = export()
    loaded = fitted(graph, ROWS, workflow.with_name("again"))
    encoded = pd.DataFrame(transformed(loaded, ROWS))
    with open_ensemble(ensemble) as client:
        scores = client.predict(SAMPLE)
        assert {column.name for column in client.schema.columns} == {"user", "price", "tags"}
    np.testing.assert_allclose(scores, expected(INPUTS, encoded), rtol=1e-6)
    assert ensemble.manifest.details["parity"]["num_rows"] > len(ROWS)
    assert set(ensemble.manifest.made_from) == {"model", "workflow", "sample"}
    assert [output.name for output in client.schema.outputs] == ["click"]


def test_model_of_raw_columns_needs_no_workflow(export: Callable[..., ExportedEnsemble], tmp_path: Path) -> None:
    inputs = INPUTS[:2]
    ensemble = export(save_saved_model(inputs, tmp_path / "raw"), workflow=None)
    with open_ensemble(ensemble) as client:
        scores = client.predict(SAMPLE.drop(["tags"]))
    np.testing.assert_allclose(scores, expected(inputs, ROWS), rtol=1e-6)


def test_rename_feeds_a_column_of_another_name(export: Callable[..., ExportedEnsemble], tmp_path: Path) -> None:
    import tensorflow as tf

    specs = [tf.TensorSpec((None, 1), tf.int64, "member_id"), tf.TensorSpec((None, 1), tf.float32, "price")]
    path = model_of(tmp_path / "renamed", lambda i, p: {"out": tf.cast(i, tf.float32) * 0.1 + p}, *specs)
    ensemble = export(path, workflow=None, renames={"user": "member_id"})
    with open_ensemble(ensemble) as client:
        scores = client.predict(SAMPLE.drop(["tags"]))
    np.testing.assert_allclose(scores, 0.1 * ROWS["user"] + ROWS["price"], rtol=1e-5)


def test_raw_lists_may_begin_with_an_empty_one(export: Callable[..., ExportedEnsemble], tmp_path: Path) -> None:
    import tensorflow as tf

    def total(tags: Any) -> Any:
        return {"out": tf.reduce_sum(tags, axis=1, keepdims=True)}

    def sample(*lists: list[int] | None) -> pa.Table:
        return pa.table({"tags": pa.array(lists, pa.list_(pa.int64()))})

    path = model_of(tmp_path / "lists", total, tf.TensorSpec((None, None), tf.int64, "tags"))
    with pytest.raises(DataError, match="'tags' of the sample has only empty lists"):
        export(path, sample([], []), workflow=None)
    with pytest.raises(
        DataError, match="'tags' has a missing list in row 2 of the sample, which cannot be passed to the model"
    ):
        export(path, sample([1], None), workflow=None)
    ensemble = export(path, sample([], [1, 2], [3]), workflow=None)
    with open_ensemble(ensemble) as client:
        assert client.predict({"tags": [[], [4, 5]]}).tolist() == [0.0, 9.0]


def model_of(path: Path, function: Callable[..., Any], *specs: Any, name: str = "serving_default") -> Path:
    import tensorflow as tf

    tf.saved_model.save(tf.Module(), str(path), signatures={name: tf.function(function, input_signature=list(specs))})
    return path


def user_spec() -> Any:
    import tensorflow as tf

    return tf.TensorSpec((None, 1), tf.int64, "user")


BAD_MODELS: dict[str, tuple[Callable[..., Any], type[RanklineError], str]] = {
    "one row for all": (
        lambda tf, user: {"out": tf.reduce_sum(tf.cast(user, tf.float32), keepdims=True)},
        ExportError,
        r"'out' has the shape \[1, 1\] for 100 rows",
    ),
    "one number for all": (
        lambda tf, user: {"out": tf.reduce_sum(tf.cast(user, tf.float32))},
        ExportError,
        r"'out' has the shape \[\] for 100 rows, expected \[100\]",
    ),
    "strings": (lambda tf, user: {"out": tf.strings.as_string(user)}, ExportError, "at least one numeric output"),
    "ids that float32 does not hold": (
        lambda tf, user: {"out": user + 2**24},
        ExportError,
        r"output 'out' is int64 with values up to 16777\d\d\d, but scores are float32",
    ),
    "an id that is not in its table": (
        lambda tf, user: {"out": tf.gather(tf.constant([1.0]), user + 1)},
        ExportError,
        r"the SavedModel failed on the sample: indices\[\d+,0\] = \d+ is not in \[0, 1\)",
    ),
    "Python": (
        lambda tf, user: {
            "out": tf.reshape(tf.py_function(lambda x: x, [tf.cast(user, tf.float32)], tf.float32), [-1, 1])
        },
        ArtifactError,
        "EagerPyFunc",
    ),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_unservable_model_is_refused_and_nothing_is_published(
    case: str, export: Callable[..., ExportedEnsemble], tmp_path: Path
) -> None:
    import tensorflow as tf

    function, error, message = BAD_MODELS[case]
    path = model_of(tmp_path / "bad", lambda user: function(tf, user), user_spec())
    with pytest.raises(error, match=message):
        export(path)
    assert not (tmp_path / "repository").exists()


def test_missing_signature_is_refused_with_the_available_ones(
    export: Callable[..., ExportedEnsemble], tmp_path: Path
) -> None:
    import tensorflow as tf

    path = model_of(tmp_path / "other", lambda user: {"out": tf.cast(user, tf.float32)}, user_spec(), name="score")
    with pytest.raises(ArtifactError, match=r"has the signatures \['score'\], expected 'serving_default'"):
        export(path)


def sample_of(**columns: Any) -> pa.Table:
    return pa.table(
        {name: columns.get(name, SAMPLE[name]) for name in SAMPLE.column_names if columns.get(name, 0) is not None}
    )


BAD_SAMPLES = {
    "no rows": (SAMPLE.slice(0, 0), "the sample has no rows"),
    "a column is missing": (sample_of(price=None), r"lacks the columns \['price'\].*fitted on"),
    "strings for numbers": (
        sample_of(user=pa.array(["a"] * 100)),
        "'user' is string in the sample, but the workflow was fitted on int64",
    ),
    "floats for ids": (sample_of(user=pa.array([0.5] * 100)), "'user' is double .* fitted on int64"),
    "values for lists": (sample_of(tags=pa.array(["a"] * 100)), "'tags' is string .* fitted on lists of strings"),
}


@pytest.mark.parametrize("case", BAD_SAMPLES)
def test_sample_that_does_not_fit_the_workflow_is_refused(case: str, export: Callable[..., ExportedEnsemble]) -> None:
    sample, message = BAD_SAMPLES[case]
    with pytest.raises(DataError, match=message):
        export(sample=sample)


class Sum(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(9, 4)

    def forward(self, tags: torch.Tensor) -> torch.Tensor:
        return self.table(tags).sum(dim=1).sum(dim=1)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A model that reads padded lists, and not their lengths."""
    with quiet_torch():
        torch.jit.script(Sum()).save(str(tmp_path / "model.pt"))
    return tmp_path / "model.pt"


def test_lists_that_became_strings_when_fitted_are_explained(
    export: Callable[..., ExportedEnsemble], script: Path, tmp_path: Path
) -> None:
    with dask.config.set({"dataframe.convert-string": True}):
        fitted_on_strings = fitted(lambda: ["tags"] >> ops.Categorify(), ROWS, tmp_path / "scratch")
    with pytest.raises(DataError, match=r"Dask turned the lists into strings when the workflow was fitted\. Import "):
        export(script, workflow=fitted_on_strings)


def test_script_that_reads_no_lengths_is_converted_to_onnx(script: Path, tmp_path: Path) -> None:
    padded = fitted(lambda: ["tags"] >> ops.Categorify() >> PaddedListSlice(0, 3), ROWS, tmp_path / "scratch")
    made = export_foreign(script, SAMPLE, tmp_path / "mine", ExportConfig(engine="onnx"), workflow=padded, name="mine")
    assert list(made.path.rglob("model.onnx"))


def test_unfitted_workflow_is_refused(export: Callable[..., ExportedEnsemble]) -> None:
    with quiet_nvtabular():
        workflow = nvt.Workflow(["user"] >> ops.Categorify())
    with pytest.raises(ArtifactError, match="before it was fitted"):
        export(workflow=workflow)


def test_sample_that_nvtabular_cannot_transform_is_refused(
    export: Callable[..., ExportedEnsemble], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> Any:
        return (["user", "tags"] >> ops.Categorify()) + (["price"] >> AtTimes())

    workflow = fitted(failing, ROWS, tmp_path / "scratch")
    monkeypatch.setattr(AtTimes, "fails", True)
    with pytest.raises(ParityError, match=r"NVTabular cannot transform the sample \(.*not today"):
        export(workflow=workflow)


def test_files_that_are_no_model_are_refused_with_the_remedy(
    export: Callable[..., ExportedEnsemble], tmp_path: Path
) -> None:
    cases = {
        "model.pkl": "A pickle runs code when it is loaded. Convert the model to ONNX",
        "model.pt2": "Expected TorchScript.*not a file from torch.export",
        "model.json": "a file from save_model of LightGBM .* or XGBoost .*, not from dump_model",
        "model.h5": r"Save it as a \.keras file",
        "model.bin": "Expected one of: SavedModel",
        "missing.onnx": "does not exist",
        "broken.onnx": "cannot be read as ONNX",
    }
    for name, message in cases.items():
        if not name.startswith("missing"):
            (tmp_path / name).write_bytes(b"\x80\x04 nothing")
        with pytest.raises(ArtifactError, match=message):
            export(tmp_path / name)


def test_rows_with_unknown_ids_are_left_out_of_the_comparison(
    export: Callable[..., ExportedEnsemble], tmp_path: Path
) -> None:
    import tensorflow as tf

    table = tf.constant(np.arange(50, dtype=np.float32))
    path = model_of(tmp_path / "table", lambda user: {"out": tf.gather(table, user)}, user_spec())
    ensemble = export(path, workflow=None)
    assert ensemble.manifest.details["parity"]["num_left_out"] >= 5


def onnx_of(body: str, path: Path) -> Path:
    path.write_bytes(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {body}').SerializeToString())
    return path


@pytest.mark.parametrize(
    ("dtype", "largest", "refused"), [("int32", 2**31 - 1, 2**32 + 5), ("uint8", 255, -1), ("int16", -(2**15), 2**15)]
)
def test_integer_that_an_input_does_not_hold_is_refused(
    dtype: str, largest: int, refused: int, export: Callable[..., ExportedEnsemble], tmp_path: Path
) -> None:
    path = onnx_of(f"g ({dtype}[N, 1] user) => (float[N, 1] out) {{ out = Cast <to = 1> (user) }}", tmp_path / "m.onnx")
    message = f"column 'user' contains {refused}, which is out of range for {dtype}"
    with pytest.raises(DataError, match=message):
        export(path, pa.table({"user": [1, refused]}), workflow=None)
    with open_ensemble(export(path, pa.table({"user": [1, largest]}), workflow=None)) as client:
        assert client.predict({"user": [largest, 7]}).tolist() == [np.float32(largest), 7]
        with pytest.raises(RequestError, match=message):
            client.predict({"user": [1, refused]})


class FourWide(torch.nn.Module):
    def forward(self, history: torch.Tensor) -> torch.Tensor:
        return history.to(torch.float32) @ torch.tensor([[1.0], [10.0], [100.0], [1000.0]])


def torch_of_width(path: Path) -> Path:
    with quiet_torch():
        torch.jit.trace(FourWide(), torch.zeros((3, 4), dtype=torch.int64)).save(str(path))
    return path


def onnx_of_width(path: Path) -> Path:
    body = """g (int32[N, 4] history) => (float[N, 1] out) {
        numbers = Cast <to = 1> (history)
        flat = Constant <value = float[4] {1, 10, 100, 1000}> ()
        shape = Constant <value = int64[2] {4, 1}> ()
        weights = Reshape (flat, shape)
        out = MatMul (numbers, weights)
    }"""
    return onnx_of(body, path.with_suffix(".onnx"))


@pytest.mark.parametrize("make", [torch_of_width, onnx_of_width])
def test_lists_of_a_fixed_width_are_padded_and_longer_ones_refused(
    make: Callable[[Path], Path], export: Callable[..., ExportedEnsemble], tmp_path: Path
) -> None:
    path = make(tmp_path / "model.pt")
    with pytest.raises((DataError, ExportError), match="5"):
        export(path, pa.table({"history": [[1, 2, 3, 4, 5]]}), workflow=None)
    with open_ensemble(export(path, pa.table({"history": [[], [1, 2], [1, 2, 3, 4]]}), workflow=None)) as client:
        assert client.predict({"history": [[5], [], [1, 2, 3]]}).tolist() == [5, 0, 321]
        with pytest.raises(RequestError, match="column 'history' has a list of 5 values, expected at most 4"):
            client.predict({"history": [[1], [1, 2, 3, 4, 5]]})


def test_bfloat16_outputs_are_served_as_float32(export: Callable[..., ExportedEnsemble], tmp_path: Path) -> None:
    import tensorflow as tf

    def scores(user: Any) -> Any:
        return {"ctr": tf.cast(user, tf.float32), "cvr": tf.cast(user, tf.bfloat16)}

    with open_ensemble(export(model_of(tmp_path / "halves", scores, user_spec()), workflow=None)) as client:
        assert {output.name for output in client.schema.outputs} == {"ctr", "cvr"}
        assert client.predict({"user": [3, 5]}).tolist() == [[3, 3], [5, 5]]


def test_matrix_without_names_is_filled_by_position_with_a_note(
    export: Callable[..., ExportedEnsemble], tmp_path: Path
) -> None:
    body = "g (float[N, 2] x) => (float[N, 1] out) { axes = Constant <value_ints = [1]> () out = ReduceSum (x, axes) }"
    path = onnx_of(body, tmp_path / "m.onnx")
    (said,) = export(path, pa.table({"b": [1.0], "a": [2]}), workflow=None).manifest.details["assumed"]
    assert said.startswith("The model does not name its features, so they are matched by position, as in the sample")
    assert ": b, a. " in said
    with pytest.raises(ConfigError, match="--missing 0 is supported only for XGBoost"):
        export(path, pa.table({"b": [1.0], "a": [2]}), workflow=None, missing=0.0)
    with pytest.raises(ExportError, match=r"2 columns, but the sample has 3: \['b', 'a', 'c'\]"):
        export(path, pa.table({"b": [1.0], "a": [2], "c": [3]}), workflow=None)


def is_missing(path: Path, *names: str) -> Path:
    """A model of which columns lack a value."""
    inputs = ", ".join(f"float[N, 1] {name}" for name in names)
    body = " ".join(f"m{n} = IsNaN ({name}) o{n} = Cast <to = 1> (m{n})" for n, name in enumerate(names))
    parts = ", ".join(f"o{n}" for n in range(len(names)))
    return onnx_of(f"g ({inputs}) => (float[N, {len(names)}] out) {{ {body} out = Concat <axis = 1> ({parts}) }}", path)


def test_missing_integers_and_empty_columns_become_nan_without_a_workflow(
    export: Callable[..., ExportedEnsemble], tmp_path: Path
) -> None:
    sample = pa.table({"a": [1, None, 3], "b": pa.nulls(3), "c": [True, False, None], "d": [1, 2, 3]})
    ensemble = export(is_missing(tmp_path / "m.onnx", *"abcd"), sample, workflow=None)
    with open_ensemble(ensemble) as client:
        rows = {name: sample[name].cast(pa.float64()) for name in "abc"} | {"d": sample["d"]}
        scores = client.predict(pa.table(rows))
    assert scores.tolist() == [[0, 1, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0]]


def test_missing_integer_that_the_model_takes_as_an_integer_is_refused(
    export: Callable[..., ExportedEnsemble], tmp_path: Path
) -> None:
    path = onnx_of("g (int64[N, 1] user) => (float[N, 1] out) { out = Cast <to = 1> (user) }", tmp_path / "m.onnx")
    for renames, name in (({}, "user"), ({"member": "user"}, "member")):
        with pytest.raises(DataError, match=rf"'{name}' has no value in row 2 of the sample, but .*'user' \(int64"):
            export(path, pa.table({name: [7, None]}), workflow=None, renames=renames)


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"a": [1, 2], "a__valid": [0.5, 1.5]}, r"\['a__valid'\]"),
        ({"h__values": [1], "h__nnzs": [1]}, r"\['h__nnzs'\]"),
    ],
)
def test_columns_that_requests_cannot_tell_apart_are_refused(
    columns: dict[str, list[Any]], names: str, export: Callable[..., ExportedEnsemble], tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=rf"in requests, the columns {names} would be read .* Rename the columns"):
        export(is_missing(tmp_path / "m.onnx", *columns), pa.table(columns), workflow=None)


def test_own_trained_model_is_found_in_its_artifact(tmp_path: Path, model: Path) -> None:
    details = {"format": SAVED_MODEL, "run_id": "", "tracking_uri": "", "metrics": {}}
    for kind in (KIND, "prepared-data"):
        with publish(tmp_path / kind, kind, details=details) as staging:
            shutil.copytree(model, staging / SAVED_MODEL)
    assert {entry.name for entry in open_model(tmp_path / KIND).inputs} == {entry.name for entry in INPUTS}
    with pytest.raises(ArtifactError, match=r"It is a Rankline artifact\. Export it with its recipe"):
        open_model(tmp_path / "prepared-data")
