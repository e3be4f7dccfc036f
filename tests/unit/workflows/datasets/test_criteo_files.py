import gzip
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.datasets.criteo_files import CATEGORIES, COLUMNS, CRITEO_SCHEMA, NUMBERS, read_criteo
from workflows.datasets.raw import fingerprint_of
from workflows.errors import DataError

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
def test_each_layout_is_found_and_its_files_are_periods_from_the_oldest_on(tmp_path, names, expected):
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
def test_what_is_written_is_read(tmp_path_factory, rows, packed, newline, ends, mark):
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
    seen, ends, most_held = 0, [], 0
    for batch in read_criteo(tmp_path).rows.batches():
        seen += batch.num_rows
        ends.append(seen)
        assert batch.nbytes < 2**24
        most_held = max(most_held, pa.total_allocated_bytes() - before)
    assert ends[-2:] == [400_000, 400_010]
    assert most_held < 2**27 < 400_000 * (14 * 8 + 26 * 12)  # which all of it would take


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (line(C26="1\t2"), " has 41 columns, expected 40 (label, I1–I13, C1–C26). Fetch the file again if it was cut"),
        (LINE.split("\t", 1)[1], " has 39 columns, expected 40 (label, I1–I13, C1–C26). Fetch the file again if it w"),
        ("0\t1\t2\n", " has 3 columns, expected 40 (label, I1–I13, C1–C26). Fetch the file again if it was cut"),
        (LINE[:-20], " has 23 columns, expected 40 (label, I1–I13, C1–C26). Fetch the file again if it was cut"),
        ("\n", " is blank, expected 40 columns. Remove it."),
        ("\r\n", " is blank, expected 40 columns. Remove it."),
        (
            line(I3="4.5"),
            ": I3 is '4.5', expected a whole number of 64 bits, or nothing. Correct the line or remove it.",
        ),
        (line(I13="x" * 50), f": I13 is '{'x' * 40}…', expected a whole number of 64 bits, or nothing. Correct"),
        (line(I1="9223372036854775808"), ": I1 is '9223372036854775808', expected a whole number of 64 bits, or nothi"),
        (line(I1="NaN"), ": I1 is 'NaN', expected a whole number of 64 bits, or nothing."),
        (line(I1=" "), ": I1 is ' ', expected a whole number of 64 bits, or nothing."),
        (line(label="2"), ": label is '2', expected 0 or 1. Correct the line or remove it."),
        (line(label="-1"), ": label is '-1', expected 0 or 1. Correct the line or remove it."),
        (line(label=""), ": label is '', expected 0 or 1. Correct the line or remove it."),
        (line(label="yes"), ": label is 'yes', expected 0 or 1. Correct the line or remove it."),
        (line(C2="123456789"), ": C2 is '123456789', expected a hexadecimal number of at most 8 digits, or nothing. C"),
        (line(C2="0x12"), ": C2 is '0x12', expected a hexadecimal number of at most 8 digits, or nothing. Correct"),
        (line(C2="12g4"), ": C2 is '12g4', expected a hexadecimal number of at most 8 digits, or nothing. Correct"),
        (line(C2="12\x114"), ": C2 is '12\\x114', expected a hexadecimal number of at most 8 digits, or nothing. C"),
        (line(C2='"1"'), ": C2 is '\"1\"', expected a hexadecimal number of at most 8 digits, or nothing. Correct"),
        (line(C2="café"), ": the bytes c3 a9 are not ASCII, expected digits only. Fetch the file again."),
        (line(I2="5").encode().replace(b"5\t", b"\xff\t", 1), ": the bytes ff are not ASCII, expected digits only."),
    ],
)
@pytest.mark.parametrize("name", ["day_1", "day_1.gz"])
def test_a_bad_row_is_refused_with_file_line_and_remedy(tmp_path, bad, expected, name):
    bad = bad if isinstance(bad, bytes) else bad.encode()
    behind = LINE.encode() if bad.endswith(b"\n") else b""
    write(tmp_path, {"day_0": LINE * 3, name: LINE.encode() * 2 + bad + behind})
    assert refusal(tmp_path).startswith(f"DIR/{name}, line 3{expected}")


def test_a_bad_row_far_into_a_file_is_placed_and_the_rows_of_earlier_batches_are_handed_out(tmp_path):
    text = line(**dict.fromkeys(CATEGORIES, "0123abcd"))
    write(tmp_path, {"train.txt": text * 60_000 + line(label="7") + text * 10})
    batches = read_criteo(tmp_path).rows.batches()
    assert next(batches).num_rows > 1_000
    with pytest.raises(DataError, match="train.txt, line 60001: label is '7'"):
        list(batches)


@given(
    place=st.integers(0, 2),
    name=st.sampled_from(COLUMNS),
    text=st.text("0123456789abcdefxXgG-+. é\x00\x10\x7f\r", min_size=1, max_size=9),
)
def test_whatever_stands_in_a_field_is_read_or_refused_by_its_line(tmp_path_factory, place, name, text):
    lines = [LINE] * 3
    lines[place] = line(**{name: text})
    directory = write(tmp_path_factory.mktemp("any"), {"train.txt": "".join(lines)})
    rows, message = outcome(directory)
    if rows is None:
        assert f"train.txt, line {place + 1}" in message
        return
    value = rows[place][name]
    if name in CATEGORIES:
        assert re.fullmatch("[0-9a-fA-F]{1,8}", value)
        assert text.rstrip("\r") == value
    else:  # Arrow reads 0x10 and " 16 " as 16 too
        text = text.strip()
        assert value == (int(text, 16) if "x" in text.lower() else int(text))
        assert name != "label" or value in (0, 1)


def test_test_files_and_what_is_no_criteo_at_all_are_refused_before_the_rows_are_read(tmp_path):
    write(tmp_path, {"test.txt": LINE.split("\t", 1)[1] * 2})
    with pytest.raises(DataError, match=r"line 1 has 39 columns, expected 40 .* A test file has no labels: remove it"):
        read_criteo(tmp_path)
    write(tmp_path, {"test.txt": "Read me first.\n"})
    with pytest.raises(DataError, match=r"test.txt, line 1 has 1 columns, expected 40"):
        read_criteo(tmp_path)


@pytest.mark.parametrize("name", ["day_1", "day_1.gz"])
def test_an_empty_file_is_named(tmp_path, name):
    write(tmp_path, {"day_0": LINE, name: ""})
    assert refusal(tmp_path) == f"DIR/{name} is empty, expected rows. Fetch or write it again, or remove it."


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.99])
def test_a_gzip_that_was_cut_off_is_refused_with_the_line_at_which_it_ends(tmp_path, share):
    text = "".join(line(I1=str(number), C2=f"{number * 7919:x}") for number in range(2_000))
    packed = gzip.compress(text.encode())
    (tmp_path / "day_0.gz").write_bytes(packed[: 20 + int(share * (len(packed) - 20))])
    message = refusal(tmp_path)
    found = re.fullmatch(r"DIR/day_0.gz, line (\d+): the gzip data is cut off. Fetch it again\.", message)
    assert int(found[1]) == pytest.approx(1 + share * 2_000, abs=100)


def test_a_gzip_that_is_damaged_or_none_is_refused(tmp_path):
    packed = bytearray(gzip.compress(LINE.encode() * 5))
    packed[-8] ^= 1
    (tmp_path / "day_0.gz").write_bytes(packed)
    assert re.match(
        r"DIR/day_0.gz, line 6: no valid gzip data \(CRC check failed.*\). Fetch it again.", refusal(tmp_path)
    )
    (tmp_path / "day_0.gz").write_bytes(LINE.encode())
    assert re.match(r"DIR/day_0.gz, line 1: no valid gzip data \(Not a gzipped", refusal(tmp_path))
    packed[10] |= 6  # a type of block that there is not
    (tmp_path / "day_0.gz").write_bytes(packed)
    assert re.match(r"DIR/day_0.gz, line 1: no valid gzip data \(.*invalid block type", refusal(tmp_path))


def test_directories_that_hold_no_or_ambiguous_files_are_refused(tmp_path):
    assert refusal(tmp_path / "nowhere").startswith("DIR is not a directory. Expected one that holds the files")
    (tmp_path / "ratings.csv").touch()
    expected = "DIR holds no Criteo data. Looked for train.txt; day_0, day_1, …; *.tsv, *.txt; each also as .gz. Give"
    assert refusal(tmp_path).startswith(expected)
    write(tmp_path, {"day_1": LINE, "day_1.gz": LINE})
    assert refusal(tmp_path) == "DIR holds both day_1 and day_1.gz, expected one. Remove the other."


@pytest.mark.parametrize("change", [LINE * 3, LINE])
def test_a_file_that_changes_while_it_is_used_is_noticed(tmp_path, change):
    raw = read_criteo(write(tmp_path, {"train.txt": LINE * 2}))
    write(tmp_path, {"train.txt": change})
    with pytest.raises(DataError, match=r"train.txt has \d rows, and had 2 when it was first read. Leave it as it is."):
        rows_of(raw)


def test_a_file_that_vanishes_is_named(tmp_path):
    raw = read_criteo(write(tmp_path, {"train.txt": LINE}))
    (tmp_path / "train.txt").unlink()
    with pytest.raises(DataError, match=r"train.txt cannot be read \(.*No such file or directory\)"):
        rows_of(raw)
