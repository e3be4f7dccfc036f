"""Criteo: rows of each layout, as a stream and in shards, what is refused, and the graph of its columns."""

import gzip
import pickle
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rankline.workflows.core.errors import DataError
from rankline.workflows.data.criteo.dataset import CRITEO
from rankline.workflows.data.criteo.reader import CATEGORIES, COLUMNS, CRITEO_SCHEMA, NUMBERS, read_criteo
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.prepare import prepare as prepare_rows
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.preprocess.raw import RawData, StreamedRows, fingerprint_of

ROW = dict.fromkeys(COLUMNS) | {"label": 1, "I1": 5, "I2": -1, "C1": "05db9164", "C26": "fE"}
LINE = "1\t5\t-1" + "\t" * 12 + "05db9164" + "\t" * 25 + "fE\n"


def line(**values):
    """`LINE` with other texts in some columns."""
    texts = dict(zip(COLUMNS, LINE.rstrip("\n").split("\t"), strict=True))
    return "\t".join((texts | values).values()) + "\n"


def write(directory, files):
    """Write name → text; what ends in .gz is compressed."""
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (directory / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return directory


def rows_of(raw):
    return [row for batch in raw.rows.batches() for row in batch.to_pylist()]


def outcome(directory):
    """Rows, or why there are none."""
    try:
        return rows_of(read_criteo(directory)), ""
    except DataError as error:
        return None, str(error)


def refusal(directory):
    with pytest.raises(DataError) as caught:
        rows_of(read_criteo(directory))
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message.replace(str(directory), "DIR")


def test_rows_have_counts_that_may_be_missing_or_negative_and_categories_as_text(tmp_path):
    raw = read_criteo(write(tmp_path, {"train.txt": LINE + line(label="0", I13="7", C26="")}))
    assert rows_of(raw) == [ROW, ROW | {"label": 0, "I13": 7, "C26": None}]
    assert (raw.rows.schema, raw.rows.periods, len(raw.rows)) == (CRITEO_SCHEMA, (2,), 2)
    assert all(batch.schema == CRITEO_SCHEMA for batch in raw.rows.batches())
    assert (raw.catalog, raw.dropped, raw.noticed) == (None, {}, {})


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train.txt", "test.txt", "notes.md"], ["train.txt"]),
        (["train.txt.gz"], ["train.txt.gz"]),
        (["day_10", "day_2.gz", "day_0", "other.tsv"], ["day_0", "day_2.gz", "day_10"]),
        (["b.txt", "a.tsv", "c.tsv.gz", ".hidden.tsv", "day_", "truth.json"], ["a.tsv", "b.txt", "c.tsv.gz"]),
        (["part10.tsv", "part9.tsv"], ["part9.tsv", "part10.tsv"]),
    ],
)
def test_files_of_each_layout_are_periods_from_the_oldest_on(tmp_path, names, expected):
    write(tmp_path, {name: line(I1=str(expected.index(name) if name in expected else 99)) for name in names})
    (tmp_path / "day_3").mkdir()
    raw = read_criteo(tmp_path)
    assert [row["I1"] for row in rows_of(raw)] == list(range(len(expected)))
    assert raw.rows.periods == (1,) * len(expected)
    assert raw.fingerprint == fingerprint_of(tmp_path / name for name in expected)


ROWS = st.lists(
    st.fixed_dictionaries(
        {"label": st.integers(0, 1)}
        | dict.fromkeys(NUMBERS, st.none() | st.integers(-3, 70_000) | st.integers(-(2**63), 2**63 - 1))
        | dict.fromkeys(CATEGORIES, st.none() | st.text("0123456789abcdefABCDEF", min_size=1, max_size=8))
    ),
    min_size=1,
    max_size=8,
)


@given(rows=ROWS, packed=st.booleans(), newline=st.sampled_from(["\n", "\r\n"]), ends=st.booleans(), mark=st.booleans())
def test_any_rows_are_read_as_written(tmp_path_factory, rows, packed, newline, ends, mark):
    lines = ["\t".join("" if row[name] is None else str(row[name]) for name in COLUMNS) for row in rows]
    text = "\ufeff" * mark + newline.join(lines) + newline * ends
    directory = write(tmp_path_factory.mktemp("any"), {"day_0.gz" if packed else "day_0": text})
    raw = read_criteo(directory)
    assert rows_of(raw) == rows
    assert rows_of(raw) == rows  # as often as one likes
    assert raw.rows.periods == (len(rows),)


def test_gzip_files_of_several_members_are_read_whole(tmp_path):
    text = LINE.encode() * 3
    (tmp_path / "day_0.gz").write_bytes(b"".join(gzip.compress(text[i : i + 9]) for i in range(0, len(text), 9)))
    raw = read_criteo(tmp_path)
    assert raw.rows.periods == (3,)
    assert rows_of(raw) == [ROW] * 3


def test_memory_is_bounded_by_batches_of_some_megabytes_that_each_belong_to_one_period(tmp_path):
    text = line(**dict.fromkeys(CATEGORIES, "0123abcd"))
    write(tmp_path, {"day_0": text * 400_000, "day_1": text * 10})
    before = pa.total_allocated_bytes()
    seen, ends, max_held = 0, [], 0
    for batch in read_criteo(tmp_path).rows.batches():
        seen += batch.num_rows
        ends.append(seen)
        assert batch.nbytes < 2**24
        max_held = max(max_held, pa.total_allocated_bytes() - before)
    assert ends[-2:] == [400_000, 400_010]
    assert max_held < 2**27 < 400_000 * (14 * 8 + 26 * 12)  # which all of it would take


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (line(C26="1\t2"), "line 3: 41 cells, expected 40"),
        (line(I13="x" * 50), f"row 3: I13 is '{'x' * 40}…', expected a 64-bit integer"),
        (line(I1="9223372036854775808"), "row 3: I1 is '9223372036854775808', expected a 64-bit integer"),
        (line(label="2"), "row 3: label is 2, expected 0 or 1"),
        (line(C2="123456789"), "row 3: C2 is '123456789', expected a hexadecimal number of at most 8 digits, or"),
    ],
)
def test_bad_row_is_refused_with_file_and_row(tmp_path, bad, expected):
    name = "day_1.gz"
    write(tmp_path, {"day_0": LINE * 3, name: LINE * 2 + bad + LINE * bad.endswith("\n")})
    assert refusal(tmp_path).startswith(f"DIR/{name}, {expected}")


@given(
    place=st.integers(0, 2),
    name=st.sampled_from(COLUMNS),
    text=st.text("0123456789abcdefxXgG-+. é\x00\x10\x7f\r", min_size=1, max_size=9),
)
@example(place=0, name="C26", text="\r")
@example(place=0, name="C26", text="\r0")
def test_any_text_in_a_field_is_read_or_refused_by_its_line(tmp_path_factory, place, name, text):
    lines = [LINE] * 3
    lines[place] = line(**{name: text})
    directory = write(tmp_path_factory.mktemp("any"), {"train.txt": "".join(lines)})
    rows, message = outcome(directory)
    if rows is None:
        found = re.search(r"train.txt(?:, (?:line|row) (\d+)\b| contains zero bytes)", message)
        assert found
        # A carriage return ends a line too.
        assert found[1] is None or place + 1 <= int(found[1]) <= place + 1 + text.count("\r")
        return
    value = rows[place][name]
    if name in CATEGORIES:
        assert value is None or re.fullmatch("[0-9a-fA-F]{1,8}", value)
        assert text.rstrip("\r") == (value or "")
    else:  # Arrow reads 0x10, "16." and " 16 " as 16 too
        text = text.strip()
        assert value == (int(text, 16) if "x" in text.lower() else float(text))
        assert name != "label" or value in (0, 1)


def test_files_without_labels_are_refused_before_the_rows_are_read(tmp_path):
    write(tmp_path, {"test.txt": LINE.split("\t", 1)[1] * 2})
    with pytest.raises(
        DataError, match=r"line 1 has 39 columns, expected 40 .* This looks like a test file without labels. Remove it"
    ):
        read_criteo(tmp_path)
    write(tmp_path, {"test.txt": "Read me first.\n"})
    with pytest.raises(DataError, match=r"test.txt, line 1 has 1 columns, expected 40"):
        read_criteo(tmp_path)


PACKED = gzip.compress(LINE.encode() * 2_000)
UNUSABLE = {
    "an empty file": ({"day_0": LINE, "day_1": ""}, "DIR/day_1 is empty"),
    "another encoding": ({"day_0": line(I2="5").encode().replace(b"5\t", b"\xff\t", 1)}, "DIR/day_0 is not utf-8 text"),
    "no data": (
        {"ratings.csv": ""},
        "DIR contains no Criteo data. Expected train.txt, or day_0, day_1, …, or *.tsv or *.txt",
    ),
    "two of one day": ({"day_1": LINE, "day_1.gz": LINE}, "DIR contains both day_1 and day_1.gz. Remove one"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_files_are_named(tmp_path, case):
    files, message = UNUSABLE[case]
    assert refusal(write(tmp_path, files)).startswith(message)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(PACKED[:-20], "ended"), (LINE.encode(), "Not a gzipped")],
    ids=["cut off", "not compressed"],
)
def test_damaged_archive_is_named(tmp_path, content, reason):
    (tmp_path / "day_0.gz").write_bytes(content)
    assert re.match(rf"DIR/day_0.gz cannot be read .*{reason}", refusal(tmp_path))


def test_file_that_changes_while_it_is_used_is_noticed(tmp_path):
    raw = read_criteo(write(tmp_path, {"train.txt": LINE * 2}))
    write(tmp_path, {"train.txt": LINE * 3})
    with pytest.raises(DataError, match=r"train.txt now has \d rows but had 2 when first read"):
        rows_of(raw)


def shards_of(directory, sizes, shard_bytes, name="day_{}", end="\n"):
    """Files of so many rows, whose I1 counts them, as read in shards."""
    texts = ["".join(line(I1=str(number)) for number in range(size)) for size in sizes]
    texts[-1] = texts[-1].rstrip("\n") + end
    write(directory, {name.format(day): text for day, text in enumerate(texts)})
    return read_criteo(directory, shard_bytes=shard_bytes).rows


@pytest.mark.parametrize("shard_bytes", [1, 500, 1 << 20])
@pytest.mark.parametrize("end", ["", "\n"])
def test_shards_hold_every_row_once_and_in_order(tmp_path, shard_bytes, end):
    rows = shards_of(tmp_path, [20, 1, 33], shard_bytes, end=end)
    tables = [pa.Table.from_batches(pickle.loads(pickle.dumps(shard)).batches()) for shard in rows.shards]
    assert [len(table) for table in tables] == [shard.num_rows for shard in rows.shards]
    assert pa.concat_tables(tables).equals(pa.Table.from_batches(rows.batches()))
    assert pa.concat_tables(tables)["I1"].to_pylist() == [*range(20), 0, *range(33)]
    assert (len(tables) == 3) == (shard_bytes == 1 << 20)


def test_bad_row_is_named_by_its_line_whatever_shard_it_is_in(tmp_path):
    write(tmp_path, {"train.txt": LINE * 30 + LINE[:-20] + "\n" + LINE * 9})
    shards = read_criteo(tmp_path, shard_bytes=500).rows.shards
    assert len(shards) > 2
    with pytest.raises(DataError, match=r"train\.txt, line 31: 23 cells, expected 40"):
        for shard in shards:
            list(shard.batches())


def test_file_that_grew_is_refused_by_its_last_shard(tmp_path):
    shards = shards_of(tmp_path, [40], 1000).shards
    with (tmp_path / "day_0").open("a", encoding="ascii") as file:
        file.write(LINE)
    assert len(list(shards[0].batches())) == 1
    with pytest.raises(DataError, match=r"day_0 now has \d+ rows but had \d+ when first read"):
        list(shards[-1].batches())


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    directory = tmp_path_factory.mktemp("generated")
    CRITEO.generate(directory, num_rows=6_000, seed=1, cardinality_scale=0.01)
    return CRITEO.read(directory)


@pytest.fixture(scope="module")
def rows(raw):
    return pa.Table.from_batches(raw.rows.batches())


@pytest.fixture(scope="module")
def encoded(raw, rows, tmp_path_factory):
    return encode(raw, rows, tmp_path_factory.mktemp("encoded"))


def encode(raw, rows, tmp_path, **choices):
    """Fit the graph on the rows, as two parts; the encoded rows, column → number of ids, the fitted workflow."""
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=-(-rows.num_rows // 2))
    with quiet_nvtabular():
        workflow = CRITEO.graph(raw, PrepareConfig(**choices), RowsConfig())
        keep_vocabularies_in(workflow, tmp_path)
        workflow.fit(nvt.Dataset(str(tmp_path / "rows.parquet"), engine="parquet", row_groups_per_part=1))
        encoded = workflow.transform(rows.to_pandas())
    schemas = workflow.output_schema.column_schemas
    sizes = {name: int(schemas[name].properties["embedding_sizes"]["cardinality"]) for name in CATEGORIES}
    return encoded, sizes, workflow


def test_numbers_are_filled_clipped_logged_and_standardised(rows, encoded):
    frame, _, _ = encoded
    for name in NUMBERS:
        logs = np.log1p(np.maximum(rows[name].fill_null(0).to_numpy(), 0))
        assert frame[name].to_numpy() == pytest.approx((logs - logs.mean()) / logs.std(), abs=1e-3)


def test_categories_have_ids_and_one_for_missing_ones(rows, encoded):
    frame, sizes, _ = encoded
    for name in CATEGORIES:
        ids, texts = frame[name].to_numpy(), rows[name].to_pandas()
        assert sizes[name] == texts.nunique() + 3  # padding, missing, unseen
        assert set(ids[texts.isna()]) <= {1}
        assert ids.max() < sizes[name]
        pairs = pd.DataFrame({"id": ids, "text": texts}).dropna()
        assert pairs.groupby("text")["id"].nunique().max() == 1
        assert pairs["id"].nunique() == texts.nunique()


PERIODS = (1500, 900, 700)
prepare = partial(prepare_rows, source="generated")


@pytest.fixture(scope="module")
def clicks() -> pa.Table:
    """Clicks of three days; the first row lacks the first number, which is then no float because of it."""
    rng = np.random.default_rng(5)
    num_rows = sum(PERIODS)
    columns: dict[str, Any] = {"label": rng.integers(0, 2, num_rows)}
    for name in NUMBERS:
        missing = rng.random(num_rows) < 0.2
        missing[0] = name == "I1"
        columns[name] = pa.array(rng.lognormal(2, 2, num_rows).astype(np.int64) - 1, mask=missing)
    for number, name in enumerate(CATEGORIES):
        ids = np.minimum(rng.zipf(1.3, num_rows), 20 * (number + 1)) * 0x9E3779B1 % 2**32
        columns[name] = pa.array([f"{value:08x}" for value in ids], mask=rng.random(num_rows) < 0.1)
    return pa.table(columns, schema=CRITEO_SCHEMA)


def streamed(rows: pa.Table, periods: tuple[int, ...] = PERIODS, batch_size: int = 333) -> RawData:
    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        for size in periods:
            yield from rows.slice(first, size).to_batches(max_chunksize=batch_size)
            first += size

    return RawData(rows=StreamedRows(schema=CRITEO_SCHEMA, periods=periods, batches=batches), fingerprint="of a stream")


@pytest.fixture(scope="module")
def prepared(clicks: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return prepare(
        CRITEO, streamed(clicks), tmp_path_factory.mktemp("work") / "prepared", encoding=RowsConfig(split="time")
    )


def split(prepared: PreparedData, name: str) -> pd.DataFrame:
    files = [prepared.path / file for file in prepared.spec.source(name).files]
    return pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)


def test_last_day_validates_and_no_row_changes_its_place(prepared: PreparedData, clicks: pa.Table) -> None:
    assert prepared.manifest.details["rows"] == {"train": 2400, "valid": 700}
    heldout = prepared.heldout()
    expected = clicks.slice(2400).select(CRITEO.inputs)
    assert heldout.select(CRITEO.inputs).to_pylist() == expected.to_pylist()
    assert heldout.schema.field("C1").type == pa.string()
    assert heldout["label"].to_pylist() == clicks["label"].slice(2400).to_pylist()
    assert split(prepared, "train")["label"].tolist() == clicks["label"].slice(0, 2400).to_pylist()


def test_spec_holds_39_inputs_of_integers_and_strings(prepared: PreparedData) -> None:
    spec = prepared.spec
    assert (len(spec.continuous), len(spec.categorical), spec.label.name) == (13, 26, "label")
    train = split(prepared, "train")
    for feature in spec.categorical:
        assert feature.cardinality == train[feature.name].max() + 1
    schema = prepared.workflow().input_schema
    assert {str(schema[name].dtype.to_numpy) for name in NUMBERS} == {"int64"}
    assert {str(schema[name].dtype.to_numpy) for name in CATEGORIES} == {"object"}


def test_batches_and_partitions_change_no_row(prepared: PreparedData, clicks: pa.Table, tmp_path: Path) -> None:
    raw = streamed(clicks, batch_size=100)
    again = prepare(CRITEO, raw, tmp_path / "prepared", encoding=RowsConfig(split="time"), partition_rows=700)
    for name in ("train", "valid"):
        # Means over parts are added up in another order.
        pd.testing.assert_frame_equal(split(again, name), split(prepared, name), rtol=1e-5)
    assert again.heldout().equals(prepared.heldout())
