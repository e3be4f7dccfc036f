import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.data.amazon.dataset import AMAZON
from rankline.workflows.data.amazon.reader import read_amazon
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in
from rankline.workflows.preprocess import SequenceConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.raw import RawData, fingerprint_of
from tests.oracles.nvtabular import transformed


def review(user: str, item: str, time: Any = 1, **more: Any) -> str:
    return json.dumps({"reviewerID": user, "asin": item, "unixReviewTime": time, **more}) + "\n"


def item(name: str, *paths: list[str], **more: Any) -> str:
    return json.dumps({"asin": name, "categories": list(paths), **more}) + "\n"


def write(directory: Path, files: dict[str, str | bytes]) -> Path:
    """Write name → text; what ends in .gz is compressed."""
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (directory / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return directory


def pairs(raw: RawData) -> list[tuple[Any, Any]]:
    return list(zip(raw.rows["user_id"].to_pylist(), raw.rows["item_id"].to_pylist(), strict=True))


def refusal(path: Path, **limits: float) -> str:
    with pytest.raises(DataError) as caught:
        read_amazon(path, **limits)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message.replace(str(path), "DIR")


REVIEWS = review("b", "y", 3) + review("a", "z", 2, reviewText='It\'s "fine"\n') + review("b", "x", 1)
ITEMS = item("x", ["Books", "Art"], ["Other"], brand="Ö & Co") + item("y", ["Books", "Art", "Prints"]) + item("w")


def test_reviews_are_sorted_by_user_then_time_then_item_and_the_same_again_is_kept(tmp_path: Path) -> None:
    text = review("b", "y", 3) + review("a", "z", 2) + review("b", "x", 3) + review("b", "q", 1) + review("b", "y", 3)
    raw = read_amazon(write(tmp_path, {"reviews.json": text}))
    assert pairs(raw) == [("b", "q"), ("b", "x"), ("b", "y"), ("b", "y"), ("a", "z")]
    assert (raw.dropped, raw.noticed) == ({}, {})


def test_category_is_the_last_of_the_first_path_and_has_one_above(tmp_path: Path) -> None:
    raw = read_amazon(write(tmp_path, {"reviews.json": REVIEWS, "meta.json": ITEMS}))
    assert raw.catalog is not None
    nothing = {"brand": None, "parent": None}
    assert raw.catalog.to_pylist() == [
        {"item_id": "x"} | nothing | {"brand": "Ö & Co", "parent": "Books", "category": "Art"},
        {"item_id": "y"} | nothing | {"parent": "Art", "category": "Prints"},
        {"item_id": "w"} | nothing | {"category": "no_category"},
        {"item_id": "z"} | nothing | {"category": "no_category"},
    ]
    assert raw.noticed == {"review of an item without metadata": 1}


@pytest.mark.parametrize("categories", [None, [], [[]], [[""]], [["Books", " "]]])
def test_item_without_a_category_has_no_category(tmp_path: Path, categories: Any) -> None:
    metadata = json.dumps({"asin": "x", "categories": categories}) + "\n" + json.dumps({"asin": "y"}) + "\n"
    raw = read_amazon(write(tmp_path, {"reviews.json": REVIEWS, "meta.json": metadata}))
    assert raw.catalog is not None
    assert set(raw.catalog["category"].to_pylist()) == {"no_category"}


def test_reviews_without_metadata_have_no_category(tmp_path: Path) -> None:
    raw = read_amazon(write(tmp_path, {"reviews.json": REVIEWS}))
    assert raw.catalog is not None
    assert raw.catalog.to_pydict() == {"item_id": ["x", "y", "z"], "category": ["no_category"] * 3}
    assert raw.noticed == {}
    assert read_amazon(tmp_path / "reviews.json").rows == raw.rows


def test_json_and_python_literals_packed_or_not_give_the_same(tmp_path: Path) -> None:
    literals = "".join(repr(json.loads(line)) + "\n" for line in ITEMS.splitlines())
    assert literals.startswith("{'asin'")
    mixed = "".join(ITEMS.splitlines(keepends=True)[:2]) + literals.splitlines()[2]
    expected = None
    for number, metadata in enumerate((ITEMS, literals, mixed, ITEMS + "\n\n", "\ufeff" + ITEMS)):
        for name in ("meta.json", "meta_Books.json.gz"):
            directory = tmp_path / f"{number}-{name}"
            directory.mkdir()
            raw = read_amazon(write(directory, {"reviews_Books_5.json.gz": REVIEWS, name: metadata}))
            expected = expected or raw
            assert (raw.rows, raw.catalog) == (expected.rows, expected.catalog)
            assert (raw.dropped, raw.noticed) == (expected.dropped, expected.noticed)


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (["reviews_A.json", "reviews_B.jsonl", "other.json", "truth.json"], ["reviews_A.json", "reviews_B.jsonl"]),
        (["Books.jsonl.gz", "Art.json", ".hidden.json", "notes.txt", "truth.json"], ["Art.json", "Books.jsonl.gz"]),
        (["Reviews.JSON"], ["Reviews.JSON"]),
    ],
)
def test_files_are_found_by_their_names(tmp_path: Path, names: list[str], read: list[str]) -> None:
    raw = read_amazon(write(tmp_path, {name: review("u", name, names.index(name)) for name in names}))
    assert {item for _, item in pairs(raw)} == set(read)
    assert raw.fingerprint == fingerprint_of(tmp_path / name for name in read)


TEXTS = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=4)


@settings(suppress_health_check=[*settings().suppress_health_check, HealthCheck.function_scoped_fixture])
@given(reviews=st.lists(st.tuples(TEXTS, TEXTS, st.integers(-(2**40), 2**40)), min_size=1), literal=st.booleans())
def test_reviews_of_any_text_are_read(tmp_path: Path, reviews: list[tuple[str, str, int]], literal: bool) -> None:
    records = [{"reviewerID": user, "asin": name, "unixReviewTime": time} for user, name, time in reviews]
    write(tmp_path, {"reviews.json": "".join((repr if literal else json.dumps)(row) + "\n" for row in records)})
    users = list(dict.fromkeys(user for user, _, _ in reviews))
    in_order = sorted(reviews, key=lambda row: (users.index(row[0]), row[2], row[1].encode()))
    assert pairs(read_amazon(tmp_path)) == [(user, name) for user, name, _ in in_order]


BAD_LINES = {
    "a call": ("__import__('os').abort()", "is neither JSON nor a Python literal"),
    "nested": ("[" * 100_000, "is neither JSON nor a Python literal"),
    "no user": ('{"asin": "x", "unixReviewTime": 1}', "reviewerID is 'None', expected a string"),
    "a date": (review("a", "x", "09 13, 2009"), "unixReviewTime is '09 13, 2009', expected whole seconds"),
    "a large time": (review("a", "x", 10**30), "expected whole seconds"),
    "half a surrogate": (review("a\ud800", "x"), "which is not UTF-8"),
    "latin-1": ('{"reviewerID": "é", "asin": "x"}'.encode("latin-1"), "the bytes e9 are not UTF-8"),
}


@pytest.mark.parametrize(("line", "fault"), BAD_LINES.values(), ids=BAD_LINES)
def test_malformed_line_is_left_out_counted_and_named(tmp_path: Path, line: str | bytes, fault: str) -> None:
    data = line if isinstance(line, bytes) else line.encode()
    raw = read_amazon(
        write(tmp_path, {"reviews.json": REVIEWS.encode() + data.rstrip(b"\n") + b"\n" + REVIEWS.encode()})
    )
    assert pairs(raw) == [("b", "x"), ("b", "x"), ("b", "y"), ("b", "y"), ("a", "z"), ("a", "z")]
    ((reason, count),) = raw.dropped.items()
    assert reason.startswith("malformed line: reviews.json, line 4: ")
    assert fault in reason
    assert len(reason) < 200
    assert count == 1


def test_malformed_lines_of_items_are_counted_with_those_of_reviews_and_the_first_three_shown(tmp_path: Path) -> None:
    broken = item("x", ["Books"]) + "no\n" + item("y").replace("[]", '"Books"')
    raw = read_amazon(write(tmp_path, {"reviews.json": "no\n" * 2 + REVIEWS, "meta.json": broken}))
    ((reason, count),) = raw.dropped.items()
    assert count == 4
    for place in ("reviews.json, line 1", "reviews.json, line 2", "meta.json, line 2"):
        assert place in reason
    assert "meta.json, line 3" not in reason
    assert raw.noticed == {"review of an item without metadata": 2}


def test_too_many_malformed_lines_stop_the_reading(tmp_path: Path) -> None:
    write(tmp_path, {"reviews.json": REVIEWS * 50 + "no\n" * 100})
    assert list(read_amazon(tmp_path).dropped.values()) == [100]
    write(tmp_path, {"reviews.json": REVIEWS * 50 + "no\n" * 101})
    assert refusal(tmp_path) == (
        "DIR/reviews.json: 101 of 251 lines are malformed, expected at most 100 lines or 1.0% of the file, "
        "whichever is more. The first are: "
        + "; ".join(f"reviews.json, line {n}: 'no' is neither JSON nor a Python literal" for n in (151, 152, 153))
        + ". Fix the file."
    )
    assert list(read_amazon(tmp_path, max_malformed_share=0.5).dropped.values()) == [101]


def test_reviews_without_a_time_are_the_oldest_of_their_user(tmp_path: Path) -> None:
    text = REVIEWS + review("b", "late", None) + '{"reviewerID": "b", "asin": "later"}\n'
    raw = read_amazon(write(tmp_path, {"reviews.json": text}))
    assert pairs(raw) == [("b", "late"), ("b", "later"), ("b", "x"), ("b", "y"), ("a", "z")]
    assert raw.noticed == {"review without a time, treated as the oldest": 2}
    write(tmp_path, {"reviews.json": review("b", "x", None) * 3})
    assert refusal(tmp_path).startswith("DIR/reviews.json: no review has a unixReviewTime")


def test_item_that_is_described_again_keeps_its_first_category(tmp_path: Path) -> None:
    raw = read_amazon(write(tmp_path, {"reviews.json": REVIEWS, "meta.json": ITEMS + item("x", ["Other"]) + item("z")}))
    assert raw.catalog is not None
    assert raw.catalog["category"].to_pylist() == ["Art", "Prints", "no_category", "no_category"]
    assert raw.noticed == {"item described more than once, first description kept": 1}


SEQUENCES = "7 10 11 10\n\n2 12 10\n"
ATTRIBUTES = {"10": [5, 1, 2, 3], "11": [1, 4], "12": [6], "13": [1, 2, 3]}


def test_sequences_have_whole_numbers_in_the_order_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, {"sequences.txt": SEQUENCES + "7 12\n", "item2attributes.json": json.dumps(ATTRIBUTES)})
    raw = read_amazon(tmp_path)
    assert pairs(raw) == [(7, 10), (7, 11), (7, 10), (7, 12), (2, 12), (2, 10)]
    # 1 is behind the brand of item 10, so it is no brand of items 11 and 13.
    assert raw.catalog is not None
    assert raw.catalog.to_pylist() == [
        {"item_id": 10, "brand": "5", "parent": "2", "category": "3"},
        {"item_id": 11, "brand": None, "parent": "1", "category": "4"},
        {"item_id": 12, "brand": None, "parent": None, "category": "6"},
        {"item_id": 13, "brand": None, "parent": "2", "category": "3"},
    ]
    assert (raw.dropped, raw.noticed) == ({}, {})


def test_sequences_may_lack_attributes_of_some_items_or_all(tmp_path: Path) -> None:
    raw = read_amazon(write(tmp_path, {"sequences.txt": SEQUENCES}))
    assert raw.catalog is not None
    assert raw.catalog.to_pydict() == {"item_id": [10, 11, 12], "category": ["no_category"] * 3}
    raw = read_amazon(write(tmp_path, {"item2attributes.json": '{"11": [5, "é"]}'}))
    assert raw.catalog is not None
    assert raw.catalog.select(["item_id", "category"]).to_pydict() == {
        "item_id": [11, 10, 12],
        "category": ["é", "no_category", "no_category"],
    }
    assert raw.noticed == {"interaction with an item without attributes": 4}


def test_lines_that_are_no_sequence_are_malformed(tmp_path: Path) -> None:
    raw = read_amazon(write(tmp_path, {"sequences.txt": f"3 4 x\n1 2\n5\n6 7.5\n8 {2**63}\n"}))
    assert pairs(raw) == [(1, 2)]
    ((reason, count),) = raw.dropped.items()
    assert count == 4
    assert "sequences.txt, line 1: '3 4 x' is not a user and its items" in reason
    assert "line 3: '5' is not" in reason


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "DIR contains no Amazon reviews. Expected sequences.txt"),
        ({"reviews.json": ""}, "DIR/reviews.json is empty"),
        ({"reviews.json": ITEMS}, "DIR/reviews.json contains no reviews. reviews.json, line 1: reviewerID is 'None'"),
        ({"reviews.json": REVIEWS, "meta.json": ""}, "DIR/meta.json is empty"),
        ({"reviews.json": REVIEWS, "reviews.json.gz": REVIEWS}, "contains both reviews.json and reviews.json.gz"),
        ({"sequences.txt": "x\n"}, "DIR/sequences.txt contains no users with items"),
        ({"sequences.txt": "1 2", "item2attributes.json": "{"}, "DIR/item2attributes.json is not JSON"),
        ({"sequences.txt": "1 2", "item2attributes.json": '{"1.5": []}'}, "item '1.5' has '[]'"),
    ],
)
def test_unusable_files_are_named(tmp_path: Path, files: dict[str, str], message: str) -> None:
    assert message in refusal(write(tmp_path, files))


PACKED = gzip.compress((REVIEWS * 1000).encode())


@pytest.mark.parametrize(
    ("content", "message"),
    [(PACKED[: len(PACKED) // 2], "the gzip data is truncated"), (REVIEWS.encode(), "the gzip data is invalid")],
    ids=["cut off", "not compressed"],
)
def test_damaged_archive_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "reviews.json.gz").write_bytes(content)
    said = refusal(tmp_path)
    assert said.startswith(f"DIR/reviews.json.gz: {message}")
    assert "Download it again" in said


def test_document_that_is_one_line_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    with (tmp_path / "reviews.json").open("wb") as stream:
        stream.truncate(80 << 20)
    assert "line 1 is longer than 64 MiB" in refusal(tmp_path)


def test_lines_are_numbered_over_blocks(tmp_path: Path) -> None:
    num_lines = 40_000
    lines = [review("u", f"item {number}", number, reviewText="x" * 400) for number in range(num_lines)]
    lines[num_lines - 7] = "no\n"
    raw = read_amazon(write(tmp_path, {"reviews.json": "".join(lines)}))
    assert len(raw.rows) == num_lines - 1
    assert list(raw.dropped) == [
        f"malformed line: reviews.json, line {num_lines - 6}: 'no' is neither JSON nor a Python literal"
    ]


ITEM_IDS = [f"B{number}" for number in range(30)]
CATALOG = pa.table(
    {
        "item_id": ITEM_IDS[:28],
        "brand": [None if number % 3 else f"brand {number % 5}" for number in range(28)],
        "category": [f"category {number % 7}" for number in range(28)],
    }
)


def raw(**columns: Any) -> RawData:
    rng = np.random.default_rng(1)
    items = rng.integers(0, 25, 300) ** 2 // 25
    rows = pa.table({"user_id": [f"A{row // 10}" for row in range(300)], "item_id": [ITEM_IDS[item] for item in items]})
    return RawData(rows=rows, catalog=CATALOG, fingerprint="", **columns)


def fitted(directory: Any, config: PrepareConfig | None = None, **choices: Any) -> nvt.Workflow:
    """The graph, fitted to one row per interaction; lists do not count."""
    found = raw()
    rows = found.rows.to_pandas().assign(history=pd.Series([ITEM_IDS, *([] for _ in range(299))], dtype=object))
    with quiet_nvtabular():
        workflow = AMAZON.graph(found, config or PrepareConfig(), SequenceConfig(**choices))
        keep_vocabularies_in(workflow, directory)
        return workflow.fit(nvt.Dataset(rows))


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> nvt.Workflow:
    return fitted(tmp_path_factory.mktemp("workflow"), max_history=4, attributes="all")


@pytest.fixture(scope="module")
def requests() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    histories = [[ITEM_IDS[item] for item in rng.integers(0, 30, length)] for length in (0, 1, 3, 4, 5, 50)]
    return pd.DataFrame(
        {
            "user_id": ["A1", "A2", "nobody", None, "A3", "A1"],
            "item_id": ["B0", "B29", "new", "B1", None, "B4"],
            "history": pd.Series([*histories[:5], [*histories[5], "new"]], dtype=object),
        }
    )


@pytest.mark.parametrize(
    ("attributes", "names"),
    [("none", ["item_id"]), ("category", ["item_id", "category_id"]), ("all", ["item_id", "brand_id", "category_id"])],
)
def test_item_and_history_have_the_same_features(tmp_path: Any, attributes: str, names: list[str]) -> None:
    schemas = fitted(tmp_path, attributes=attributes).output_schema.column_schemas
    for suffix in ("_trgt", "_pos"):
        assert [name.removesuffix(suffix) for name in schemas if name.endswith(suffix)] == names
    assert set(schemas) == {"user_id", *(name + suffix for name in names for suffix in ("_trgt", "_pos"))}
    for name in names:
        one, many = schemas[f"{name}_trgt"], schemas[f"{name}_pos"]
        assert (one.is_list, many.is_list) == (False, True)
        assert one.properties["embedding_sizes"] == many.properties["embedding_sizes"]


def test_items_have_the_same_ids_alone_and_in_a_history(workflow: nvt.Workflow, requests: pd.DataFrame) -> None:
    made = transformed(workflow, requests)
    every = sorted({item for row in requests["history"] for item in row})
    alone = transformed(workflow, pd.DataFrame({"user_id": "A1", "item_id": every, "history": [[] for _ in every]}))
    for name in ("item_id", "brand_id", "category_id"):
        ids = dict(zip(every, alone[f"{name}_trgt"], strict=True))
        assert made[f"{name}_pos"] == [[ids[item] for item in row[-4:]] for row in requests["history"]]


def test_new_items_are_unseen_and_have_no_category(workflow: nvt.Workflow, requests: pd.DataFrame) -> None:
    made = transformed(workflow, requests)
    assert made["user_id"][2:4] == [2, 1]
    assert made["item_id_trgt"][2] == 2
    # B27 is in the catalogue, but nobody chose it: its category is known all the same.
    never, known, unknown = transformed(
        workflow, pd.DataFrame({"user_id": "A1", "item_id": ["B27", "B6", "new"], "history": [[], [], []]})
    )["category_id_trgt"]
    assert never == known != unknown == 2


def test_attributes_are_named() -> None:
    with pytest.raises(ConfigError, match="attributes is 'some'. Available: none, category, all"):
        SequenceConfig(attributes="some")
