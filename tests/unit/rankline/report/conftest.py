"""A small prepared table whose label depends on one number and a little on a category."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.workflows.data.tabular.config import ColumnConfig, FilesConfig, LabelConfig, TableConfig
from rankline.workflows.data.tabular.dataset import table_dataset
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.prepare import prepare
from rankline.workflows.preprocess.prepared_data import PreparedData

NUM_ROWS = 2_000
CONFIG = TableConfig(
    data=FilesConfig(files=("rows.parquet",)),
    columns={
        "user": ColumnConfig(type="int", role="id"),
        "amount": ColumnConfig(type="float", role="numeric"),
        "kind": ColumnConfig(role="categorical"),
        "noise <b>": ColumnConfig(type="float", role="numeric"),
    },
    labels={"bought": LabelConfig(classes=("0", "1"))},
    group="user",
)


def score(rows: pa.Table) -> np.ndarray:
    """The model: raw rows in, probabilities out."""
    amount = rows["amount"].to_numpy(zero_copy_only=False)
    is_b = np.array([value == "b" for value in rows["kind"].to_pylist()])
    return 1 / (1 + np.exp(-(2 * np.nan_to_num(amount) + 0.5 * is_b)))


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return prepare_rows(tmp_path_factory.mktemp("report"), CONFIG)


def prepare_rows(directory: Path, config: TableConfig, lacks_users: float = 0.0) -> PreparedData:
    rng = np.random.default_rng(0)
    amount = rng.normal(size=NUM_ROWS)
    amount[:200] = np.nan
    rows = pa.table(
        {
            "user": pa.array(rng.zipf(1.5, NUM_ROWS) % 500, mask=np.arange(NUM_ROWS) < lacks_users * NUM_ROWS),
            "amount": amount,
            "kind": rng.choice(["a", "b", "c"], NUM_ROWS),
            "noise <b>": rng.normal(size=NUM_ROWS),
        }
    )
    labels = (rng.random(NUM_ROWS) < score(rows)).astype(int)
    pq.write_table(rows.append_column("bought", pa.array(labels).cast(pa.string())), directory / "rows.parquet")
    dataset = table_dataset("shop", config, directory)
    raw = dataset.read(directory)
    return prepare(dataset, raw, directory / "prepared", PrepareConfig(), RowsConfig(), source="a test")
