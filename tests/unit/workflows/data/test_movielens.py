"""MovieLens: rows of each layout, what the graph looks up of movies, and that no column knows a label."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.workflows.core.errors import DataError
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.data.movielens.dataset import MOVIELENS_HISTORY
from rankline.workflows.data.movielens.reader import CATALOG_SCHEMA, RATINGS_SCHEMA, read_movielens
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.prepare import prepare
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.preprocess.raw import RawData

RATINGS = "userId,movieId,rating,timestamp\n1,10,4.0,100\n1,20,2.5,101\n2,10,5.0,102\n"
MOVIES = (
    "movieId,title,genres\n"
    "10,Toy Story (1995),Adventure|Children\n"
    '20,"Amélie ""Poulain"", Le (2001)",(no genres listed)\n'
    "30,Unrated,\n"
)


def write(directory, **files):
    """Write `ratings_csv=...` as ratings.csv; text is UTF-8."""
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode(errors="surrogateescape")
        (directory / name.replace("_", ".")).write_bytes(data)
    return directory


def ratings_of(raw):
    return [tuple(row.values()) for row in raw.rows.to_pylist()]


def flags(*positions):
    return "|".join("1" if position in positions else "0" for position in range(19))


GENRES_100K = "\n".join(f"genre{position}|{position}" for position in range(19)) + "\n\n"
LAYOUTS = {
    "csv": (
        {"ratings_csv": RATINGS, "movies_csv": MOVIES},
        [(1, 10, 4.0, 100), (1, 20, 2.5, 101), (2, 10, 5.0, 102)],
        [("Toy Story (1995)", ["Adventure", "Children"]), ('Amélie "Poulain", Le (2001)', ["(no genres listed)"]),
         ("Unrated", [])],
    ),
    "double colons": (
        {"ratings_dat": "1::10::4::100\n2::20::3::101\n",
         "movies_dat": '10::Misérables, Les: "x", a (1995)::Drama|Musical\n20::B::Comedy\n'.encode("latin-1")},
        [(1, 10, 4.0, 100), (2, 20, 3.0, 101)],
        [('Misérables, Les: "x", a (1995)', ["Drama", "Musical"]), ("B", ["Comedy"])],
    ),
    "tabs and genre flags": (
        {"u_data": "1\t10\t4\t100\n2\t20\t3\t101\n", "u_genre": GENRES_100K,
         "u_item": f"10|Café (1995)|01-Jan-1995||http://x|{flags(0, 18)}\n20|B, C||||{flags()}\n".encode("latin-1")},
        [(1, 10, 4.0, 100), (2, 20, 3.0, 101)],
        [("Café (1995)", ["genre0", "genre18"]), ("B, C", [])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_movielens_layouts_include_titles_and_genres(tmp_path, layout):
    files, ratings, movies = LAYOUTS[layout]
    raw = read_movielens(write(tmp_path, **files))
    assert (raw.rows.schema, raw.catalog.schema) == (RATINGS_SCHEMA, CATALOG_SCHEMA)
    assert ratings_of(raw) == ratings
    assert raw.catalog.to_pylist() == [
        {"movieId": 10 * (place + 1), "title": title, "genres": genres} for place, (title, genres) in enumerate(movies)
    ]
    assert (raw.dropped, raw.noticed) == ({}, {})


def test_columns_may_stand_in_any_order_with_others_between_and_windows_line_ends(tmp_path):
    ratings = "\ufefftimestamp,note,movieId,userId,rating\r\n100,x,10,1,4.0\r\n"
    raw = read_movielens(write(tmp_path, ratings_csv=ratings, movies_csv=MOVIES))
    assert ratings_of(raw) == [(1, 10, 4.0, 100)]
    assert raw.rows.schema == RATINGS_SCHEMA


FIRST = [(1, 10, 4.0, 100), (1, 20, 2.5, 101), (2, 10, 5.0, 102)]


@pytest.mark.parametrize(
    ("more", "expected", "dropped", "noticed"),
    [
        (",10,3.0,103\n3,,3.0,103\n3,10,,103\n3,20,NaN,103\n", FIRST, {"missing value": 4}, {}),
        ("1,10,1.0,\n3,10,3.0,\n", [*FIRST, (3, 10, 3.0, 0)], {"duplicate": 1}, {"missing timestamp": 1}),
        (
            "1,20,0.5,99\n2,10,1.0,102\n3,10,3.0,103\n",  # the latest one stays, and the order of the rows
            [*FIRST[:2], (2, 10, 1.0, 102), (3, 10, 3.0, 103)],
            {"duplicate": 2},
            {},
        ),
        ("3,99,3.0,103\n", [*FIRST, (3, 99, 3.0, 103)], {}, {"rating of an unknown movie": 1}),
    ],
    ids=["missing values", "missing timestamps", "duplicates", "unknown movies"],
)
def test_odd_rows_are_dropped_or_noticed_and_counted(tmp_path, more, expected, dropped, noticed):
    raw = read_movielens(write(tmp_path, ratings_csv=RATINGS + more, movies_csv=MOVIES))
    assert ratings_of(raw) == expected
    assert (raw.dropped, raw.noticed) == (dropped, noticed)


def test_fingerprint_changes_with_either_file(tmp_path):
    first = read_movielens(write(tmp_path, ratings_csv=RATINGS, movies_csv=MOVIES)).fingerprint
    assert read_movielens(tmp_path).fingerprint == first
    assert read_movielens(write(tmp_path, movies_csv=MOVIES + "40,E,Drama\n")).fingerprint != first


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"other_txt": "x"}, "ratings.csv, movies.csv; ratings.dat, movies.dat; u.data, u.item, u.genre"),
        ({"ratings_csv": RATINGS}, "DIR lacks movies.csv"),
        *(
            ({"ratings_csv": ratings, "movies_csv": MOVIES}, f"DIR/ratings.csv{message}")
            for ratings, message in (
                ("userId,movieId,timestamp\n1,1,1\n", " has no column 'rating'"),
                (RATINGS + "3,10,inf,103\n", ", row 4: rating is not a finite 32-bit number"),
                ("", " is empty"),
                ("userId,movieId,rating,timestamp\n", " has a header but no rows"),
            )
        ),
        *(
            ({"ratings_csv": RATINGS + row, "movies_csv": MOVIES}, message)
            for row, message in (
                ("3,10,good,103\n", "column #2: Row #5: CSV conversion error to float: invalid value 'good'"),
                ("3,10,3", "Row #5: Expected 4 columns, got 3"),
            )
        ),
        *(
            ({"ratings_csv": RATINGS, "movies_csv": movies}, message)
            for movies, message in (
                (MOVIES + "10,Again,Drama\n20,Again,Drama\n", "movieId 10 occurs more than once (2 such ids)"),
                (MOVIES.encode("latin-1"), "column #1: Row #3: CSV conversion error to string: invalid UTF8 data"),
            )
        ),
        (
            {"ratings_dat": "1::10::4::100\n1::20::x::100\n", "movies_dat": "10::A::Drama\n"},
            "Row #2: CSV conversion error to float: invalid value 'x'",
        ),
        *(
            ({"u_data": "1\t10\t4\t100\n", "u_item": f"10|A||||{item}\n", "u_genre": GENRES_100K}, message)
            for item, message in ((f"{flags(2)[:-1]}7", "Row #1: CSV conversion error to bool: invalid value '7'"),)
        ),
    ],
)
def test_bad_files_are_refused_in_one_line_with_place_and_value(tmp_path, files, message):
    with pytest.raises(DataError) as caught:
        read_movielens(write(tmp_path, **files))
    said = str(caught.value).replace(str(tmp_path), "DIR")
    assert message in said
    assert len(said.splitlines()) == 1


def test_rows_of_several_blocks_keep_their_order(tmp_path):
    lines = [f"{user},{movie},3.5,{user * movie}" for user in range(1, 301) for movie in range(1, 301)]
    write(tmp_path, ratings_csv="userId,movieId,rating,timestamp\n" + "\n".join(lines), movies_csv=MOVIES)
    raw = read_movielens(tmp_path)
    assert raw.rows["userId"].num_chunks > 1
    assert raw.rows["timestamp"] == pa.chunked_array([[u * m for u in range(1, 301) for m in range(1, 301)]])


MANY, ONE, NOBODY = 1, 2, 999
NO_TITLE, NO_YEAR, UNKNOWN_MOVIE = 101, 102, 999_999


def raw_of(users: Any, movies: Any, stars: Any) -> RawData:
    rows = pa.table([users, movies, np.asarray(stars, np.float32), np.arange(len(users))], schema=RATINGS_SCHEMA)
    titles = [None if movie == NO_TITLE else "Nameless" if movie == NO_YEAR else "A (1994)" for movie in range(1, 5001)]
    genres = [["Drama", "War"] if movie % 2 else ["War"] if movie % 4 else [] for movie in range(1, 5001)]
    catalog = pa.table([np.arange(1, 5001), titles, genres], schema=CATALOG_SCHEMA)
    return RawData(rows=rows, catalog=catalog, fingerprint="")


def odd_raw() -> RawData:
    """A user who rated 3,000 movies, one who rated one, and others."""
    rng = np.random.default_rng(0)
    users = np.repeat([MANY, ONE, *range(3, 43)], [3000, 1, *[10] * 40])
    movies = np.concatenate([np.arange(1, 3001), [NO_TITLE], *(rng.permutation(200)[:10] + 1 for _ in range(40))])
    return raw_of(users, movies, rng.integers(1, 11, len(users)) / 2)


def prepared_at(path: Path, raw: RawData) -> PreparedData:
    return prepare(MOVIELENS_HISTORY, raw, path, PrepareConfig(), RowsConfig(), source="a test")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return prepared_at(tmp_path_factory.mktemp("odd") / "prepared", odd_raw())


def test_row_has_its_ids_its_genres_and_a_year_and_a_request_its_ids(prepared: PreparedData) -> None:
    assert {name: set(members) for name, members in prepared.spec.channels.items()} == {
        "categorical": {"userId", "movieId", "genres", "year"},
        "continuous": set(),
        "label": {"rating"},
    }
    assert prepared.inputs == ("userId", "movieId")
    assert (prepared.group_by, prepared.item) == ("userId", "movieId")


def test_noise_labels_leak_into_no_column(tmp_path: Path) -> None:
    """10,000 validation rows: the AUC of noise has a deviation of 0.0058, so 0.02 is 3.5 of them. All columns together,
    with what each user rated: `tests/unit/training/models/factorization/test_bayesian_fm.py`."""
    rng = np.random.default_rng(1)
    users = np.repeat(np.arange(2500), 20)
    movies = rng.permuted(np.tile(np.arange(1, 301), (2500, 1)), axis=1)[:, :20].ravel()
    raw = raw_of(users, movies, np.where(rng.random(50_000) < 0.5, 3.0, 4.0))
    made = prepared_at(tmp_path / "prepared", raw)
    train, valid = (
        pd.concat([pq.read_table(made.path / file).to_pandas() for file in made.spec.source(split).files])
        for split in ("train", "valid")
    )
    assert len(valid) == 10_000
    for name in (name for name in train.columns if name != "rating"):
        # A list by its mean; a column by what training says of its values, as a model would learn it.
        known, asked = (
            frame[name].map(lambda ids: np.append(ids, 0).mean()) if made.spec[name].is_list else frame[name]
            for frame in (train, valid)
        )
        means = train["rating"].groupby(known.to_numpy()).mean()
        of_values = asked.map(means).fillna(0.5).to_numpy()
        for scores in (of_values, asked.to_numpy(dtype=np.float64, na_value=0.0)):
            assert exact_auc(valid["rating"].to_numpy() > 0, np.nan_to_num(scores)) == pytest.approx(0.5, abs=0.02), (
                name
            )


def test_histories_of_users_are_kept_beside_the_rows(prepared: PreparedData) -> None:
    histories = prepared.histories()
    assert histories is not None
    owned = dict(zip(histories["userId"].to_pylist(), histories["movieId"].to_pylist(), strict=True))
    assert owned[MANY] == list(range(1, 3001))
    assert owned[ONE] == [NO_TITLE]
    assert len(owned) == 42
