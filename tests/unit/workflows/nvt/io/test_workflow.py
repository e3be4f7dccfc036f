"""Workflows, saved and loaded as data."""

import importlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in, load_workflow, save_workflow
from rankline.workflows.nvt.operators import (
    Categorify,
    GreaterThan,
    HashedCategorify,
    NullToEmptyList,
    OrderedCategorify,
    SharedCategorify,
)
from tests.harness.hostile.pickles import Made, Name, pickled
from tests.harness.process.programs import leave_installed
from tests.oracles.nvtabular import fitted

from merlin.dag.ops.subgraph import Subgraph  # isort: skip
import pyarrow as pa
import pyarrow.parquet as pq

from rankline.workflows.nvt.io.vocabulary_files import check_vocabulary, read_vocabulary

RATINGS = pd.DataFrame({"user": [1, 1, 2, 7], "item": [10, 20, 10, 99], "rating": [1.0, 5.0, 3.0, 4.0]})
ITEMS = pd.DataFrame({"item": [10, 20], "genres": [["a", "é"], []]})


@pytest.fixture
def workflow(tmp_path: Path) -> nvt.Workflow:
    with quiet_nvtabular():
        genres = (["item"] >> ops.JoinExternal(ITEMS, on=["item"]))["genres"] >> NullToEmptyList() >> ops.Categorify()
        ids = ["user"] >> HashedCategorify(freq_threshold=2, num_buckets=4)
        workflow = nvt.Workflow(ids + genres + (["rating"] >> GreaterThan(3.0)))
        keep_vocabularies_in(workflow, tmp_path / "scratch")
        workflow.fit(nvt.Dataset(RATINGS))
        save_workflow(workflow, tmp_path / "workflow")
    return workflow


def transformed(workflow: nvt.Workflow) -> pd.DataFrame:
    with quiet_nvtabular():
        return workflow.transform(RATINGS.copy())


def test_loaded_workflow_transforms_as_the_saved_one(workflow: nvt.Workflow, tmp_path: Path) -> None:
    loaded = load_workflow(tmp_path / "workflow")
    expected, actual = transformed(workflow), transformed(loaded)
    for name in expected:
        assert [list(v) if name == "genres" else v for v in actual[name]] == [
            list(v) if name == "genres" else v for v in expected[name]
        ]


@pytest.mark.parametrize(
    "kind", [Categorify, OrderedCategorify, partial(HashedCategorify, num_buckets=4), partial(SharedCategorify, {})]
)
def test_vocabularies_are_saved_wherever_they_were_written(
    kind: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where NVTabular writes `categories/` by default
    with quiet_nvtabular():
        workflow = nvt.Workflow(["user"] >> kind())
        workflow.fit(nvt.Dataset(RATINGS))
        expected = transformed(workflow)["user"].tolist()
        workflow.save("saved")
    shutil.rmtree("categories")
    assert transformed(load_workflow(Path("saved")))["user"].tolist() == expected


def transformed_rows(workflow: nvt.Workflow, rows: pd.DataFrame) -> pd.DataFrame:
    with quiet_nvtabular():
        return workflow.transform(nvt.Dataset(rows, cpu=True)).to_ddf().compute(scheduler="synchronous")


def test_workflow_bytes_do_not_depend_on_where_it_is_fitted(tmp_path: Path) -> None:
    rows = pd.DataFrame(
        {"a": ["x", "y", "x", "z"] * 5, "b": [1, 2, 1, 2] * 5, "c": [1.0, 2.0, 3.0, 4.0] * 5, "y": [0, 1, 1, 0] * 5}
    )

    def graph() -> Any:
        encoded = (["a"] >> ops.Categorify()) + (["a"] >> ops.TargetEncoding("y", kfold=2))
        return encoded + (["b"] >> ops.JoinGroupby(cont_cols=["c"], stats=["mean"])) + (["c"] >> ops.Normalize())

    contents = []
    for place in ("here", "there/below"):
        workflow = fitted(graph, rows, tmp_path / place / "scratch")
        save_workflow(workflow, tmp_path / place / "workflow")
        files = sorted(path for path in (tmp_path / place / "workflow").rglob("*") if path.is_file())
        contents.append({path.relative_to(tmp_path / place): path.read_bytes() for path in files})
        shutil.rmtree(tmp_path / place / "scratch")
        by_nvtabular = nvt.Workflow.load(str(tmp_path / place / "workflow"))
        pd.testing.assert_frame_equal(
            transformed_rows(load_workflow(tmp_path / place / "workflow"), rows), transformed_rows(by_nvtabular, rows)
        )
    assert contents[0] == contents[1]
    assert len(contents[0]) > 2


def similarity() -> Any:
    return [["user", "movie"]] >> ops.ColumnSimilarity(scipy.sparse.coo_matrix(np.eye(8)), on_device=False)


PARTS = {
    "a dtype of ids": lambda: ["user"] >> ops.Categorify(dtype=np.int32),
    "a graph in a graph": lambda: ["user"] >> Subgraph("inner", ["user"] >> ops.Categorify()),
    "a matrix": similarity,
}
MOVIES = RATINGS.assign(movie=[1, 2, 1, 7])


def saved(part: Any, directory: Path) -> nvt.Workflow:
    workflow = fitted(lambda: part, MOVIES, directory / "scratch")
    with quiet_nvtabular():
        save_workflow(workflow, directory / "workflow")
    return workflow


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_operators_are_loaded(tmp_path: Path, part: str) -> None:
    workflow = saved(PARTS[part](), tmp_path)
    loaded = load_workflow(tmp_path / "workflow")
    with quiet_nvtabular():
        pd.testing.assert_frame_equal(loaded.transform(MOVIES.copy()), workflow.transform(MOVIES.copy()))


@pytest.mark.parametrize("wrap", [lambda part: part, lambda part: ["user", "movie"] >> Subgraph("inner", part)])
def test_matrix_that_leads_outside_of_itself_is_refused(tmp_path: Path, wrap: Any) -> None:
    part = similarity()
    workflow = saved(wrap(part), tmp_path)
    load_workflow(tmp_path / "workflow")
    part.op.left_features.indices[3] = 1 << 30
    with quiet_nvtabular():
        save_workflow(workflow, tmp_path / "tampered")
    with pytest.raises(ArtifactError, match="cannot be read .ValueError.*Prepare the data again, or save"):
        load_workflow(tmp_path / "tampered")


def test_workflow_may_move_after_it_was_saved(workflow: nvt.Workflow, tmp_path: Path) -> None:
    (tmp_path / "workflow").rename(tmp_path / "elsewhere")
    assert len(transformed(load_workflow(tmp_path / "elsewhere"))) == len(RATINGS)


def test_innocent_looking_class_of_a_data_library_cannot_be_used_to_run_code(tmp_path: Path) -> None:
    """pandas evaluates text in `Expr`, and re-exports it under pandas.core."""
    marker = tmp_path / "pwned"
    code = f"@pickle.codecs.builtins.open({str(marker)!r}, 'w')"
    expression = Made(Name("pandas.core.computation.expr", "Expr"), (code,))
    (tmp_path / "workflow.pkl").write_bytes(pickled(expression))
    with pytest.raises(ArtifactError, match=r"refers to pandas\.core\.computation\.expr\.Expr, which is not data"):
        load_workflow(tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "name",
    [
        "numpy.load",
        "pandas.read_pickle",
        "builtins.eval",
        "nvtabular.ops.categorify.Path",
        "scipy.sparse._csr.csr_matrix.__init__",
    ],
)
def test_names_that_could_reach_code_or_files_are_refused(tmp_path: Path, name: str) -> None:
    module, attribute = name.rsplit(".", 1)
    (tmp_path / "workflow.pkl").write_bytes(pickled(Name(module, attribute)))
    with pytest.raises(ArtifactError, match=f"refers to {name}, which is not data"):
        load_workflow(tmp_path)


def test_operator_that_no_package_names_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "workflow.pkl").write_bytes(pickled(Made(Name("shop.operators", "Cents"))))
    with pytest.raises(ArtifactError, match=r"refers to shop\.operators\.Cents, .* register your own operator class"):
        load_workflow(tmp_path)


def test_operator_whose_module_fails_is_not_blamed_on_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_installed(tmp_path, "broken", "[rankline.operators]\ncents = broken_operators:Cents\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "workflow.pkl").write_bytes(pickled(Made(Name("broken_operators", "Cents"))))
    reasons = {"import nonexist": "ModuleNotFoundError: No module named 'nonexist'", "1 / 0": "ZeroDivisionError: .*"}
    for code, reason in reasons.items():
        (tmp_path / "broken_operators.py").write_text(code)
        importlib.invalidate_caches()
        with pytest.raises(
            ArtifactError, match=rf"cannot be imported \(broken_operators: {reason}\)\. Install or fix the package"
        ):
            load_workflow(tmp_path)


@pytest.mark.parametrize("content", [pickled(Name("pandas.core.internals.blocks", "new_block")), b"no pickle"])
def test_workflow_of_packages_that_are_too_old_says_so(workflow: nvt.Workflow, tmp_path: Path, content: bytes) -> None:
    directory = tmp_path / "workflow"
    (directory / "workflow.pkl").write_bytes(content)
    metadata = json.loads((directory / "metadata.json").read_text())
    metadata["versions"] |= {"nvtabular": "1.3.3", "pandas": "1.2.5"}
    (directory / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(ArtifactError) as refused:
        load_workflow(directory)
    assert str(refused.value).endswith(
        "The workflow was saved by nvtabular 1.3.3 and pandas 1.2.5, expected nvtabular 23.8 and pandas 1.5 or later. "
        "Prepare the data again."
    )


def test_missing_truncated_and_foreign_files_have_distinct_errors(workflow: nvt.Workflow, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"contains no workflow\.pkl"):
        load_workflow(tmp_path)
    path = tmp_path / "workflow" / "workflow.pkl"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ArtifactError, match="cannot be read"):
        load_workflow(tmp_path / "workflow")
    path.write_bytes(pickle.dumps({"no": "workflow"}))
    with pytest.raises(ArtifactError, match="contains dict, expected an NVTabular workflow"):
        load_workflow(tmp_path / "workflow")
    assert workflow is not None


TEXTS = pa.array([f"user {number:x}" for number in range(1_000)])


def often(text: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([text]))


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (TEXTS, {}),
        (TEXTS.cast(pa.large_binary()), {}),
        (pa.array(np.arange(1_000.0)), {"use_dictionary": False}),
        (pa.array([None, "a", "b"]), {}),
        (pa.array([1, 2], pa.int64()).cast(pa.decimal128(38, 2)), {}),
    ],
    ids=str,
)
def test_vocabularies_as_they_are_written_are_taken(tmp_path: Path, values: pa.Array, options: Any) -> None:
    path = tmp_path / "unique.user.parquet"
    pq.write_table(pa.table({"user": values}), path, **{"compression": "NONE", **options})
    check_vocabulary(path)
    check_vocabulary(tmp_path)  # as Dask writes them, in parts
    assert len(read_vocabulary(str(path), ["user"])) == len(values)


@pytest.mark.parametrize(
    ("values", "options", "reason"),
    [
        (pa.nulls(9_000_000, pa.string()), {}, "expands to more than 16 times that size"),
        (often("x" * 1_000_000, 100), {"compression": "SNAPPY"}, "expands to more than 16 times that size"),
        (TEXTS, {"compression": "ZSTD"}, "is compressed with ZSTD, expected one of UNCOMPRESSED, SNAPPY"),
        (pa.array([[1], [2]]), {}, "contains lists"),
        (TEXTS, {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}, "cannot be read as Parquet"),
    ],
)
def test_vocabulary_that_expands_is_refused(tmp_path: Path, values: pa.Array, options: Any, reason: str) -> None:
    path = tmp_path / "unique.user.parquet"
    pq.write_table(pa.table({"user": values}), path, **{"compression": "NONE", **options})
    with pytest.raises(ArtifactError, match=reason):
        check_vocabulary(path)
    with pytest.raises(ArtifactError, match=reason):
        check_vocabulary(tmp_path)


def test_vocabulary_that_is_no_file_is_refused(tmp_path: Path) -> None:
    check_vocabulary(tmp_path / "missing")  # is refused where it is read
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(ArtifactError, match="it is not a regular file"):
            check_vocabulary(path)


def test_vocabulary_without_its_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "unique.user.parquet"
    pq.write_table(pa.table({"user": TEXTS}), path)
    with pytest.raises(ArtifactError, match=r"has no column 'item'\. Save the workflow again"):
        read_vocabulary(str(path), ["item"])
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_vocabulary(str(path), ["user"])
