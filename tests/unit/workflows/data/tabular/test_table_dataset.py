"""Columns of every type from a Parquet file through `prepare`, and the same raw file through plan and client."""

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.serving.client.encoding import Dense, to_dense
from rankline.serving.client.schema import ColumnSchema
from rankline.serving.export.parity import plan_inputs
from rankline.workflows.compiler.compile import compile_workflow
from rankline.workflows.core.errors import ArtifactError, ConfigError, DataError
from rankline.workflows.data.tabular.cast import typed_column
from rankline.workflows.data.tabular.config import ColumnConfig, FilesConfig, LabelConfig, TableConfig
from rankline.workflows.data.tabular.dataset import table_dataset
from rankline.workflows.data.tabular.reader import TableRequests
from rankline.workflows.nvt.compat import quiet_nvtabular
from rankline.workflows.plan import TransformPlan, tensor_call
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.prepare import prepare
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.ragged import Padded
from rankline.workflows.schema.tensors import Tensor
from tests.oracles.native_plan import assert_native_is_the_same

N = 600
COLUMNS = {
    "a flag?": ColumnConfig(type="bool"),
    "small": ColumnConfig(type="int", role="numeric"),
    "code": ColumnConfig(type="int", role="id", frequency_threshold=2),
    "unsigned": ColumnConfig(type="int", role="numeric", scale="none"),
    "größe": ColumnConfig(type="float", role="numeric", scale="log"),
    "amount": ColumnConfig(type="float", role="numeric", missing_indicator=True),
    "day": ColumnConfig(type="timestamp", role="timestamp", parts=("month", "day_of_year", "year")),
    "seen.at": ColumnConfig(type="timestamp", role="timestamp", parts=("hour", "weekday", "elapsed_days")),
    "kind": ColumnConfig(role="categorical"),
    "item": ColumnConfig(role="id", hash_buckets=5),
    "words": ColumnConfig(role="multihot"),
    "numbers": ColumnConfig(type="int", role="multihot", max_length=2),
    "past items": ColumnConfig(role="history", of="item", max_length=3),
    "user": ColumnConfig(role="group"),
    "junk": ColumnConfig(role="ignored"),
}
CONFIG = TableConfig(
    data=FilesConfig(files=("rows.parquet",)),
    columns=COLUMNS,
    labels={"Bought?": LabelConfig(classes=("no", "yes"))},
    time="seen.at",
    group="user",
)


def table() -> pa.Table:
    rng = np.random.default_rng(3)

    def some(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([None if rng.random() < 0.2 else value for value in values], kind)

    begin = datetime(2023, 12, 30)
    times = [begin + timedelta(minutes=int(m)) for m in rng.integers(0, 500_000, N)]
    lists = [[f"w{w}" for w in rng.integers(0, 9, n)] for n in rng.integers(0, 4, N)]
    return pa.table(
        {
            "a flag?": some((rng.random(N) < 0.5).tolist(), pa.bool_()),
            "small": some(rng.integers(-100, 100, N).tolist(), pa.int8()),
            "code": some(rng.integers(0, 50, N).tolist(), pa.int32()),
            "unsigned": some(rng.integers(0, 9, N).tolist(), pa.uint16()),
            "größe": some(rng.lognormal(0, 2, N).tolist(), pa.float32()),
            "amount": some([Decimal(int(v)) / 100 for v in rng.integers(0, 99999, N)], pa.decimal128(12, 2)),
            "day": some([time.date() for time in times], pa.date32()),
            "seen.at": some(times, pa.timestamp("ns", "Europe/Berlin")),
            "kind": some([f"k{v}" for v in rng.integers(0, 5, N)], pa.string()).dictionary_encode(),
            "item": some([f"i{v}" for v in rng.integers(0, 60, N)], pa.large_string()),
            "words": some(lists, pa.list_(pa.string())),
            "numbers": some([[int(v) for v in rng.integers(0, 9, 3)] for _ in range(N)], pa.large_list(pa.int16())),
            "past items": some([[f"i{v}" for v in rng.integers(0, 60, 4)] for _ in range(N)], pa.list_(pa.string())),
            "user": pa.array([f"u{v}" for v in rng.integers(0, 40, N)]),
            "junk": pa.array([b"\x00"] * N),
            "Bought?": pa.array(np.where(rng.random(N) < 0.4, "yes", "no")),
        }
    )


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("raw") / "rows.parquet"
    pq.write_table(table(), path, row_group_size=250)
    return path


def prepare_all(raw: Path, output: Path, encoding: RowsConfig) -> PreparedData:
    dataset = table_dataset("shop", CONFIG, raw.parent)
    return prepare(dataset, dataset.read(raw.parent), output, PrepareConfig(), encoding, source="a test")


@pytest.fixture(scope="module")
def prepared(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return prepare_all(raw, tmp_path_factory.mktemp("prepared") / "data", RowsConfig(split="group"))


@pytest.fixture(scope="module")
def plan(prepared: PreparedData) -> TransformPlan:
    with quiet_nvtabular():
        workflow = prepared.workflow().remove_inputs(list(prepared.spec.channels["label"]))
    return compile_workflow(workflow, prepared.spec.model_dtypes)


def test_outputs_have_plain_names_and_a_request_those_of_the_files(prepared: PreparedData) -> None:
    assert prepared.inputs == tuple(name for name in COLUMNS if name not in ("user", "junk"))
    assert {"a_flag", "gr_e", "amount_filled", "seen_at_hour", "day_day_of_year", "past_items"} <= set(
        prepared.spec.model_dtypes
    )
    assert prepared.spec.channels["label"] == ("Bought",)
    assert prepared.spec["item"].cardinality == prepared.spec["past_items"].cardinality


def test_groups_of_heldout_rows_are_known_if_they_are_no_input(prepared: PreparedData) -> None:
    assert set(prepared.heldout().column_names) == {*prepared.inputs, "Bought"}
    groups, training_groups = prepared.heldout_groups(N), prepared.first_rows_of_groups()
    assert groups is not None
    assert training_groups is not None
    assert len(groups) == prepared.heldout().num_rows
    assert len(np.unique(groups)) + len(training_groups) == len(table()["user"].unique())


def test_split_by_time_needs_a_column_of_times(raw: Path, tmp_path: Path) -> None:
    dataset = table_dataset("shop", replace(CONFIG, time=None), raw.parent)
    with pytest.raises(ConfigError, match="cannot be split by time, because `time` is not set"):
        prepare(
            dataset, dataset.read(raw.parent), tmp_path / "data", encoding=RowsConfig(split="time"), source="a test"
        )


def test_missing_number_is_marked(prepared: PreparedData) -> None:
    rows = pa.concat_tables([pq.read_table(prepared.path / file) for file in prepared.spec.source("train").files])
    marks = rows["amount_filled"].to_numpy()
    assert len(np.unique(marks)) == 2
    assert set(rows["amount"].to_numpy()[marks > 0]) == {0}


def test_missing_indicator_needs_a_number_and_a_free_name() -> None:
    with pytest.raises(ConfigError, match="role id has missing_indicator, which only role numeric supports"):
        ColumnConfig(role="id", missing_indicator=True)
    with pytest.raises(ConfigError, match="'amount_filled' has the name of a missing_indicator"):
        replace(CONFIG, columns={**COLUMNS, "amount_filled": ColumnConfig()})


def test_recipe_that_was_changed_since_needs_its_data_prepared_again(prepared: PreparedData) -> None:
    assert PreparedData.load(prepared.path, table_dataset("shop", CONFIG, Path())).inputs == prepared.inputs
    changed = replace(CONFIG, columns={**COLUMNS, "kind": ColumnConfig(role="ignored")}, time=None)
    with pytest.raises(ArtifactError, match=r"before the recipe changed columns\.kind, time, or by .* prepare"):
        PreparedData.load(prepared.path, table_dataset("shop", changed, Path()))
    unread = replace(CONFIG, columns={**COLUMNS, "junk 2": ColumnConfig(role="ignored")})
    assert PreparedData.load(prepared.path, table_dataset("shop", unread, Path()))


def test_raw_file_is_served_as_it_was_prepared(prepared: PreparedData, plan: TransformPlan, raw: Path) -> None:
    """The plan makes of all raw rows what `prepare` wrote, whichever split they are in."""
    sent = pa.concat_tables([rows for _, rows, _ in TableRequests(CONFIG).of_file(raw)])
    sent = sent.select([spec.name for spec in plan.inputs])
    served = plan.run(*plan_inputs(plan, _as_planned(plan, sent)))
    written = pa.concat_tables(
        [pq.read_table(prepared.path / file) for source in prepared.spec.sources.values() for file in source.files]
    )
    for name, column in served.items():
        given = sorted(map(str, _values(column)))
        assert given == sorted(map(str, _listed(written[name], column))), name


@pytest.mark.parametrize("value", [np.inf, -1e300])
def test_number_beyond_float32_is_missing_in_a_request_as_in_a_file(plan: TransformPlan, value: float) -> None:
    tensors = {t.name: t.zeros(2) for spec in plan.inputs for t in spec.tensors}
    tensors |= dict.fromkeys(("größe", "amount"), np.array([[value], [np.nan]]))
    served = tensor_call(plan)(tensors)
    assert [served[name].tolist() for name in ("gr_e", "amount")] == [[[0.0], [0.0]]] * 2
    assert_native_is_the_same(plan, tensors)
    column = ColumnConfig(type="float", role="numeric")
    assert typed_column(pa.array([value, 3e38]), column).to_pylist() == [None, 3e38]
    assert typed_column(pa.array([str(value)]), column).to_pylist() == [None]


def test_empty_text_is_missing_in_a_request_as_in_a_file(plan: TransformPlan) -> None:
    tensors = {t.name: t.zeros(2) for spec in plan.inputs for t in spec.tensors}
    for name in ("kind", "item"):
        tensors[name] = np.array([[b""], [b"x"]], object)
        tensors[f"{name}__valid"] = np.array([[True], [False]])
    for name in ("words", "past items"):
        tensors[f"{name}__values"] = np.array([[b"", b"w1", b"i1"], [b"w1", b"i1", b""]], object)
        tensors[f"{name}__nnzs"] = np.array([[3], [2]], tensors[f"{name}__nnzs"].dtype)
    served = tensor_call(plan)(tensors)
    for name, column in served.items():
        assert column[0].tolist() == column[1].tolist(), name
    assert served["kind"].tolist() == [[1], [1]]
    assert_native_is_the_same(plan, tensors)


def _as_planned(plan: TransformPlan, rows: pa.Table) -> pa.Table:
    kinds = {"object": pa.large_string()}
    made = {}
    for spec in plan.inputs:
        element = kinds.get(spec.dtype) or pa.from_numpy_dtype(spec.numpy_dtype)
        made[spec.name] = rows[spec.name].cast(element if spec.width is None else pa.list_(element))
    return pa.table(made)


def _values(column: Any) -> list[Any]:
    if not isinstance(column, Padded):
        return [float(np.float32(v)) if column.dtype.kind == "f" else int(v) for v in column]
    lists = column.ragged()
    return [part.tolist() for part in np.split(lists.values, lists.offsets[1:-1])]


def _listed(column: pa.ChunkedArray, like: Any) -> list[Any]:
    values = column.to_pylist()
    return values if isinstance(like, Padded) else [float(v) if like.dtype.kind == "f" else int(v) for v in values]


def test_client_casts_raw_columns_as_the_reader_does(plan: TransformPlan, raw: Path) -> None:
    rows = pq.read_table(raw)
    sent = pa.concat_tables([rows for _, rows, _ in TableRequests(CONFIG).of_file(raw)])
    for spec in plan.inputs:
        if spec.width is not None:
            continue
        values = Tensor(name=spec.name, dtype=spec.dtype)
        mask = None if spec.numpy_dtype.kind == "f" else Tensor(name="mask", dtype="bool", optional=True)
        column = ColumnSchema(name=spec.name, values=values, mask=mask)
        of_raw, of_sent = to_dense(rows[spec.name], column), to_dense(sent[spec.name], column)
        for one, other in zip(of_raw, of_sent, strict=True):
            assert _flat(one) == _flat(other), spec.name


def _flat(dense: Dense) -> list[Any]:
    values = dense.values
    return values.to_pylist() if isinstance(values, pa.Array) else np.nan_to_num(values, nan=-1e9).tolist()


def test_lists_may_be_empty_in_the_first_rows_and_vectors_are_numbers(tmp_path: Path) -> None:
    begin, rows = 150, 300
    table = {
        "tags": [[] if n < begin else [f"t{n % 3}"] for n in range(rows)],
        "ids": pa.array([None if n < begin else [n % 2, 7] for n in range(rows)], pa.list_(pa.int64())),
        "emb": pa.array([None if n < begin else [n / 2, -1.0] for n in range(rows)], pa.list_(pa.float32())),
        "label": [n % 2 for n in range(rows)],
    }
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    columns = {
        "tags": ColumnConfig(role="multihot"),
        "ids": ColumnConfig(type="int", role="multihot"),
        "emb": ColumnConfig(type="float", role="vector", length=2, scale="none"),
    }
    config = TableConfig(data=FilesConfig(files=("rows.parquet",)), columns=columns, labels={"label": LabelConfig()})
    dataset = table_dataset("t", config, tmp_path)
    encoding = RowsConfig(valid_share=0.5)
    make = partial(prepare, dataset, dataset.read(tmp_path), tmp_path / "data", PrepareConfig(), encoding)
    data = make(source="a test", partition_rows=64)
    assert [(f.name, f.cardinality, f.is_list) for f in data.spec.features if f.name != "label"] == [
        ("tags", 6, True), ("ids", 6, True), ("emb_0", None, False), ("emb_1", None, False),
    ]  # fmt: skip
    splits = [pq.read_table(data.path / file) for s in data.spec.sources.values() for file in s.files]
    made = pa.concat_tables(splits).to_pydict()
    assert sorted(made["emb_0"]) == [0.0] * begin + [n / 2 for n in range(begin, rows)]
    assert sorted(made["emb_1"]) == [-1.0] * (rows - begin) + [0.0] * begin
    assert sorted(map(len, made["ids"])) == [0] * begin + [2] * (rows - begin)
    assert sorted(map(len, made["tags"])) == [0] * begin + [1] * (rows - begin)


@pytest.mark.parametrize("split", ["time", "group"])
def test_training_rows_are_ordered_by_what_splits_them(tmp_path: Path, split: str) -> None:
    order = np.random.default_rng(0).permutation(400)
    (tmp_path / "rows.csv").write_text("who,n,at,label\n" + "".join(f"u{n % 40},{n},{n},{n % 3 % 2}\n" for n in order))
    columns = {
        "who": ColumnConfig(role="group"),
        "n": ColumnConfig(type="int", role="numeric", scale="none"),
        "at": ColumnConfig(type="int", role="ignored"),
    }
    data = FilesConfig(files=("rows.csv",))
    config = TableConfig(data=data, columns=columns, labels={"label": LabelConfig()}, time="at", group="who")
    dataset = table_dataset("t", config, tmp_path)
    made = prepare(
        dataset, dataset.read(tmp_path), tmp_path / "data", PrepareConfig(), RowsConfig(split=split), source="a test",
        partition_rows=50,
    )  # fmt: skip
    rows = pa.concat_tables([pq.read_table(made.path / file) for file in made.spec.source("train").files])
    numbers = rows["n"].to_numpy().astype(int)
    firsts = made.first_rows_of_groups()
    if split == "time":
        assert firsts is None
        assert numbers.tolist() == list(range(320))
    else:
        assert [len(set(part % 40)) for part in np.split(numbers, firsts)[1:]] == [1] * len(firsts)
        assert len(firsts) == len(set(numbers % 40))


def test_rows_without_a_label_are_counted(tmp_path: Path) -> None:
    lines = "".join(f"{n % 5},{'' if n % 4 == 0 else n % 3 % 2}\n" for n in range(400))
    (tmp_path / "rows.csv").write_text("kind,label\n" + lines)
    config = TableConfig(
        data=FilesConfig(files=("rows.csv",)), columns={"kind": ColumnConfig()}, labels={"label": LabelConfig()}
    )
    dataset = table_dataset("t", config, tmp_path)
    make = partial(prepare, dataset, dataset.read(tmp_path), tmp_path / "data", source="a test")
    assert make().manifest.details["dropped"] == {"no label": 100}


def test_label_of_one_class_and_a_column_of_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("kind,empty,label\n" + "a,,1\n" * 50)
    kind, number = ColumnConfig(), ColumnConfig(type="float", role="numeric")
    for kept, message in (
        ({"kind": kind, "empty": ColumnConfig()}, "'empty'.* missing in every training row"),
        (
            {"kind": kind, "empty": number},
            r"'empty'.*have no mean because all their training values are missing or one is infinite\. Provide "
            r"more rows",
        ),
        ({"kind": kind}, "every"),
    ):
        config = TableConfig(data=FilesConfig(files=("rows.csv",)), columns=kept, labels={"label": LabelConfig()})
        dataset = table_dataset("t", config, tmp_path)
        with pytest.raises(DataError, match=message):
            prepare(dataset, dataset.read(tmp_path), tmp_path / "data", source="a test")
    assert not (tmp_path / "data").exists()


def test_labels_whose_scores_would_have_one_name_are_refused(tmp_path: Path) -> None:
    labels = {"x": LabelConfig(task="multiclass", classes=("a", "y")), "x y": LabelConfig(task="regression")}
    config = TableConfig(data=FilesConfig(files=("f",)), columns={"n": ColumnConfig()}, labels=labels)
    with pytest.raises(
        ConfigError, match="two labels would produce the same score name, 'score_x_y'. Rename a label or a class."
    ):
        table_dataset("t", config, tmp_path)
