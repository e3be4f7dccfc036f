"""What a loader can read besides Parquet files."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rankline.training.data.loader.dataset import open_rows, schema_of
from rankline.training.data.loader.stream import BatchStream
from rankline.training.data.loader.tensorflow import KerasSequenceLoader
from rankline.workflows.core.errors import ArgumentError, ConfigError, DataError
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular

dd = import_module("dask.dataframe")  # after NVTabular, which configures it
FRAME = pd.DataFrame({"row": np.arange(30), "tags": [[n] * (1 + n % 3) for n in range(30)]})


def rows_of(data: Any, **options: Any) -> list[int]:
    batches = BatchStream(data, ["row"], batch_size=7, **{"shuffle": False, **options}).batches()
    return [row for batch in batches for row in batch["row"].tolist()]  # type: ignore[union-attr]


class OfPolars:
    """What Polars and other libraries export."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.Table.from_pandas(FRAME).__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("kind", ["pandas", "dask", "arrow", "exported", "dataset", "dataset of dask", "csv"])
def test_tables_and_datasets_are_read_in_order(kind: str, tmp_path: Path) -> None:
    parts = dd.from_pandas(FRAME, npartitions=4)
    with quiet_nvtabular():
        if kind == "csv":
            for number in (10, 2):
                FRAME[["row"]].iloc[slice(15) if number == 2 else slice(15, 30)].to_csv(tmp_path / f"part_{number}.csv")
            data = nvt.Dataset([str(path) for path in tmp_path.glob("*.csv")], engine="csv")
        else:
            data = {
                "pandas": lambda: FRAME.set_index(FRAME["row"].to_numpy()[::-1]),
                "dask": lambda: parts,
                "arrow": lambda: pa.Table.from_pandas(FRAME),
                "exported": OfPolars,
                "dataset": lambda: nvt.Dataset(FRAME),
                "dataset of dask": lambda: nvt.Dataset(parts),
            }[kind]()
    assert rows_of(data) == list(range(30))
    shuffled = rows_of(data, shuffle=True)
    assert (sorted(shuffled), shuffled == sorted(shuffled)) == (list(range(30)), False)


def test_datasets_of_files_keep_their_filters_and_natural_order(tmp_path: Path) -> None:
    for number, rows in ((10, range(20, 30)), (2, range(10, 20)), (0, range(10))):
        FRAME[["row"]].iloc[rows].to_parquet(tmp_path / f"part_{number}.parquet")
    with quiet_nvtabular():
        assert rows_of(nvt.Dataset(str(tmp_path / "*.parquet"), engine="parquet")) == list(range(30))
        filtered = nvt.Dataset(str(tmp_path / "*.parquet"), engine="parquet", filters=[("row", ">=", 15)])
        assert rows_of(filtered) == list(range(15, 30))
        with pytest.raises(DataError, match=r"the Dataset has no rows\. Check its filters"):
            rows_of(nvt.Dataset(str(tmp_path / "*.parquet"), engine="parquet", filters=[("row", ">=", 99)]))


def test_result_of_a_workflow_is_read(tmp_path: Path) -> None:
    with quiet_nvtabular():
        workflow = nvt.Workflow((["row"] >> ops.Normalize()) + ["tags"])
        made = workflow.fit_transform(nvt.Dataset(FRAME))
    loader = KerasSequenceLoader(made, 30, None, cat_names=["tags"], shuffle=False)  # numbers by their tag
    inputs, _ = loader.peek()
    with quiet_nvtabular():
        np.testing.assert_allclose(inputs["row"].numpy()[:, 0], made.to_ddf().compute()["row"], rtol=1e-5)
        made.to_parquet(str(tmp_path / "made"))
    assert schema_of(tmp_path / "made", open_rows(tmp_path / "made")).column_names == ["row", "tags"]
    assert KerasSequenceLoader(tmp_path / "made", 30, cat_names=["tags"]).cont_names == ["row"]


def test_large_tables_are_read_in_groups_and_streamed_if_memory_is_short() -> None:
    table = pa.table({"row": np.arange(150_000)})
    rows = open_rows(table)
    assert [group.num_rows for group in rows.row_groups] == [65_536, 65_536, 18_928]
    assert rows_of(table) == list(range(150_000))
    assert sorted(rows_of(table, shuffle=True, buffer_size="1MB")) == list(range(150_000))
    stream = BatchStream(table, ["row"], batch_size=7)
    assert stream.identity()["data"] != BatchStream(table.slice(1), ["row"], batch_size=7).identity()["data"]


def test_csv_files_are_read_with_the_options_of_the_reader(tmp_path: Path) -> None:
    FRAME[["row"]].to_csv(tmp_path / "rows.csv", sep=";", index=False)
    options = {"engine": "csv", "reader_kwargs": {"sep": ";"}, "shuffle": False}
    loader = KerasSequenceLoader(tmp_path / "rows.csv", 30, None, cont_names=["row"], **options)  # type: ignore[arg-type]
    assert loader.peek()[0]["row"].numpy()[:, 0].tolist() == list(range(30))
    assert KerasSequenceLoader(tmp_path, 30, None, cont_names=["row"], **options).num_rows == 30  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="are for files, but the data is a DataFrame"):
        KerasSequenceLoader(FRAME, 30, None, cont_names=["row"], **options)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="none.csv"):
        KerasSequenceLoader(tmp_path / "none.csv", 30, None, cont_names=["row"], **options)  # type: ignore[arg-type]


def test_column_that_is_empty_in_one_partition_takes_its_type_from_the_others() -> None:
    parts = [pd.DataFrame({"row": [0], "tags": [None]}), pd.DataFrame({"row": [1], "tags": [[4, 5]]})]
    rows = open_rows(
        dd.from_delayed([dd.from_pandas(p, npartitions=1).to_delayed()[0] for p in parts], verify_meta=False)
    )
    assert rows.schema.field("tags").type == pa.list_(pa.int64())


def test_categories_of_pandas_and_arrow_are_read_as_their_values() -> None:
    frame = pd.DataFrame({"row": pd.Series([5, 7, 5]).astype("category")})
    assert rows_of(frame) == rows_of(pa.Table.from_pandas(frame)) == [5, 7, 5]


def test_lists_of_a_dataset_that_is_created_before_nvtabular_is_configured() -> None:
    program = """
import rankline.training.data.loader.torch as loaders
import pandas, nvtabular
dataset = nvtabular.Dataset(pandas.DataFrame({"tags": [[1], [2, 3]]}))
print(loaders.TorchAsyncItr(dataset, ["tags"], None, None, 2).peek()[0]["tags"][0].tolist())
"""
    printed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True, text=True
    )
    assert printed.stdout.splitlines()[-1] == "[1, 2, 3]"


def test_stored_schema_is_that_of_the_directory_and_must_be_whole(tmp_path: Path) -> None:
    for directory in (tmp_path / "day=1", tmp_path / "other"):
        directory.mkdir()
        FRAME[["row"]].to_parquet(directory / "a.parquet")
    (tmp_path / ".merlin").mkdir()
    (tmp_path / ".merlin" / "schema.json").write_text("{")
    assert schema_of(tmp_path / "other", open_rows(tmp_path / "other")) is None
    with pytest.raises(DataError, match=r"schema\.json is not a Merlin schema: "):
        schema_of(tmp_path, open_rows(tmp_path))
    paths = (path for path in [tmp_path / "other" / "a.parquet"])
    assert KerasSequenceLoader(paths, 30, None, None, None, ["row"]).num_rows == 30


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"row": [1, 2]}, "the data is a dict, expected Parquet files, a glob pattern or a directory, a Dataset of"),
        (3, "the data is a int, expected Parquet files"),
        ([1, 2], "the data is a list, expected Parquet files"),
    ],
)
def test_unsupported_objects_are_refused_with_what_is_accepted(data: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        open_rows(data)
    with pytest.raises(TypeError, match=message):
        open_rows(data)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([{"row": []}], r"the Dask DataFrame has no rows\."),
        (
            [{"row": [1]}, {"row": [0.5]}],
            "column 'row' is double in partition 1, but int64 in partition 0. Convert the column to one dtype",
        ),
        ([{"row": [1], "x": [1]}, {"row": [1]}], r"only one of the partitions 0 and 1 has \['x'\]"),
        ([{"row": [1]}, {"row": [1], "x": [1]}], r"only one of the partitions 0 and 1 has \['x'\]"),
        ([{"row": [1, "a"]}], "the Dask DataFrame cannot be read: .*Convert the column"),
    ],
)
def test_partitions_that_differ_are_refused(frames: list[dict[str, Any]], message: str) -> None:
    parts = [dd.from_pandas(pd.DataFrame(frame), npartitions=1).to_delayed()[0] for frame in frames]
    with pytest.raises(DataError, match=message):
        open_rows(dd.from_delayed(parts, verify_meta=False))


def test_missing_files_are_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no .parquet files found"):
        open_rows(tmp_path / "*.parquet")
