import hashlib

import pyarrow as pa
import pytest

from rankline.workflows.core.errors import DataError
from rankline.workflows.data.movielens.reader import CATALOG_SCHEMA, RATINGS_SCHEMA, read_movielens

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
        data = content if isinstance(content, bytes) else content.encode()
        (directory / name.replace("_", ".")).write_bytes(data)
    return directory


def ratings_of(raw):
    return [tuple(row.values()) for row in raw.rows.to_pylist()]


def test_reads_the_csv_layout(tmp_path):
    raw = read_movielens(write(tmp_path, ratings_csv=RATINGS, movies_csv=MOVIES))
    assert raw.rows.schema == RATINGS_SCHEMA
    assert raw.catalog.schema == CATALOG_SCHEMA
    assert ratings_of(raw) == [(1, 10, 4.0, 100), (1, 20, 2.5, 101), (2, 10, 5.0, 102)]
    assert raw.catalog.to_pylist() == [
        {"movieId": 10, "title": "Toy Story (1995)", "genres": ["Adventure", "Children"]},
        {"movieId": 20, "title": 'Amélie "Poulain", Le (2001)', "genres": ["(no genres listed)"]},
        {"movieId": 30, "title": "Unrated", "genres": []},
    ]
    assert (raw.dropped, raw.noticed) == ({}, {})


def test_reads_the_double_colon_layout_in_latin_1(tmp_path):
    write(tmp_path, ratings_dat="1::10::4::100\n2::20::3::101\n")
    write(tmp_path, movies_dat='10::Misérables, Les: "x", a (1995)::Drama|Musical\n20::B::Comedy\n'.encode("latin-1"))
    raw = read_movielens(tmp_path)
    assert raw.rows.schema == RATINGS_SCHEMA
    assert raw.catalog.schema == CATALOG_SCHEMA
    assert ratings_of(raw) == [(1, 10, 4.0, 100), (2, 20, 3.0, 101)]
    assert raw.catalog.to_pylist() == [
        {"movieId": 10, "title": 'Misérables, Les: "x", a (1995)', "genres": ["Drama", "Musical"]},
        {"movieId": 20, "title": "B", "genres": ["Comedy"]},
    ]


def flags(*positions):
    return "|".join("1" if position in positions else "0" for position in range(19))


GENRES_100K = "\n".join(f"genre{position}|{position}" for position in range(19)) + "\n\n"


def test_reads_the_tab_layout_with_genre_flags(tmp_path):
    items = f"10|Café (1995)|01-Jan-1995||http://x|{flags(0, 18)}\n20|B, C (1996)||||{flags()}\n30|D||||{flags(5)}\n"
    write(tmp_path, u_data="1\t10\t4\t100\n2\t20\t3\t101\n", u_item=items.encode("latin-1"), u_genre=GENRES_100K)
    raw = read_movielens(tmp_path)
    assert raw.rows.schema == RATINGS_SCHEMA
    assert raw.catalog.schema == CATALOG_SCHEMA
    assert ratings_of(raw) == [(1, 10, 4.0, 100), (2, 20, 3.0, 101)]
    assert raw.catalog.to_pylist() == [
        {"movieId": 10, "title": "Café (1995)", "genres": ["genre0", "genre18"]},
        {"movieId": 20, "title": "B, C (1996)", "genres": []},
        {"movieId": 30, "title": "D", "genres": ["genre5"]},
    ]


def test_columns_may_stand_in_any_order_with_others_between_and_windows_line_ends(tmp_path):
    ratings = "\ufefftimestamp,note,movieId,userId,rating\r\n100,x,10,1,4.0\r\n"
    raw = read_movielens(write(tmp_path, ratings_csv=ratings, movies_csv=MOVIES))
    assert ratings_of(raw) == [(1, 10, 4.0, 100)]
    assert raw.rows.schema == RATINGS_SCHEMA


def test_rows_with_a_missing_value_are_dropped_and_counted(tmp_path):
    ratings = RATINGS + ",10,3.0,103\n3,,3.0,103\n3,10,,103\n3,20,NaN,103\n"
    raw = read_movielens(write(tmp_path, ratings_csv=ratings, movies_csv=MOVIES))
    assert raw.dropped == {"missing value": 4}
    assert len(ratings_of(raw)) == 3


def test_a_missing_timestamp_is_noticed_and_counts_as_the_earliest(tmp_path):
    raw = read_movielens(write(tmp_path, ratings_csv=RATINGS + "1,10,1.0,\n3,10,3.0,\n", movies_csv=MOVIES))
    assert ratings_of(raw) == [(1, 10, 4.0, 100), (1, 20, 2.5, 101), (2, 10, 5.0, 102), (3, 10, 3.0, 0)]
    assert raw.noticed == {"missing timestamp": 1}
    assert raw.dropped == {"duplicate": 1}


def test_the_latest_of_duplicates_stays_and_the_order_of_the_rows_too(tmp_path):
    ratings = RATINGS + "1,20,0.5,99\n2,10,1.0,102\n3,10,3.0,103\n"
    raw = read_movielens(write(tmp_path, ratings_csv=ratings, movies_csv=MOVIES))
    assert ratings_of(raw) == [(1, 10, 4.0, 100), (1, 20, 2.5, 101), (2, 10, 1.0, 102), (3, 10, 3.0, 103)]
    assert raw.dropped == {"duplicate": 2}


def test_ratings_of_unknown_movies_stay_and_are_noticed(tmp_path):
    raw = read_movielens(write(tmp_path, ratings_csv=RATINGS + "3,99,3.0,103\n3,98,3.0,103\n", movies_csv=MOVIES))
    assert raw.rows.num_rows == 5
    assert raw.dropped == {}
    assert raw.noticed == {"rating of an unknown movie": 2}


def test_the_fingerprint_changes_with_either_file(tmp_path):
    first = read_movielens(write(tmp_path, ratings_csv=RATINGS, movies_csv=MOVIES)).fingerprint
    assert read_movielens(tmp_path).fingerprint == first
    second = read_movielens(write(tmp_path, movies_csv=MOVIES + "40,E,Drama\n")).fingerprint
    assert second != first
    assert len(second) == len(hashlib.sha256().hexdigest())


def refusal(directory):
    with pytest.raises(DataError) as caught:
        read_movielens(directory)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message.replace(str(directory), "DIR")


def test_a_missing_directory_is_named(tmp_path):
    message = refusal(tmp_path / "nowhere")
    assert message == "DIR is not a directory. Expected one that holds the files of MovieLens."


def test_a_directory_without_movielens_names_the_files_that_were_looked_for(tmp_path):
    message = refusal(write(tmp_path, other_txt="x"))
    assert "ratings.csv, movies.csv; ratings.dat, movies.dat; u.data, u.item, u.genre" in message


def test_a_file_that_is_missing_beside_another_is_named(tmp_path):
    assert refusal(write(tmp_path, ratings_csv=RATINGS)).startswith("DIR lacks movies.csv. Expected ratings.csv, mov")


@pytest.mark.parametrize(
    ("ratings", "expected"),
    [
        ("userid,movieId,rating,timestamp\n1,1,1,1\n", "has a column 'userid', expected 'userId'. Rename it"),
        ("userId,movieId,timestamp\n1,1,1\n", "has no column 'rating'. Found userId, movieId, timestamp; expected"),
        (RATINGS + "3,10,good,103\n", "column #2: Row #5: CSV conversion error to float: invalid value 'good'"),
        (RATINGS + "3,10,inf,103\n", "ratings.csv, row 4: rating is not a finite number"),
        (RATINGS + f"{2**63},10,3.0,1\n", "column #0: Row #5: CSV conversion error to int64: invalid value '92233720"),
        (RATINGS + "3,10,3", "Row #5: Expected 4 columns, got 3"),
        (RATINGS.encode() + b"3,\xff,3.0,103\n", "Row #5: CSV conversion error to int64: invalid value"),
        ("", "ratings.csv is empty, expected rows"),
        ("userId,movieId,rating,timestamp\n", "ratings.csv has a header and no rows"),
        ("userId,movieId,rating,timestamp\n1,10,,100\n", "ratings.csv: every row lacks a user, a movie or a rating"),
    ],
)
def test_bad_ratings_are_refused_with_place_value_and_remedy(tmp_path, ratings, expected):
    message = refusal(write(tmp_path, ratings_csv=ratings, movies_csv=MOVIES))
    assert message.startswith("DIR/ratings.csv")
    assert expected in message


@pytest.mark.parametrize(
    ("movies", "expected"),
    [
        (MOVIES + "10,Again,Drama\n20,Again,Drama\n", "movies.csv: movieId 10 occurs more than once (2 such ids)"),
        (MOVIES + ",Nameless,Drama\n", "movies.csv: 1 rows lack movieId"),
        (MOVIES + "40,Cut off", "Row #5: Expected 3 columns, got 2: 40,Cut off"),
        (MOVIES.encode("latin-1"), "column #1: Row #3: CSV conversion error to string: invalid UTF8 data"),
        ("", "movies.csv is empty"),
    ],
)
def test_bad_movies_are_refused_with_place_value_and_remedy(tmp_path, movies, expected):
    assert expected in refusal(write(tmp_path, ratings_csv=RATINGS, movies_csv=movies))


def test_bad_lines_of_the_other_layouts_are_placed_too(tmp_path):
    one, two = tmp_path / "1m", tmp_path / "100k"
    one.mkdir()
    two.mkdir()
    write(one, ratings_dat="1::10::4::100\n1::20::x::100\n", movies_dat="10::A::Drama\n")
    assert "Row #2: CSV conversion error to float: invalid value 'x'" in refusal(one)
    write(two, u_data="1\t10\t4\t100\n", u_item=f"10|A||||{flags(2)}|0\n", u_genre=GENRES_100K)
    assert "Row #1: Expected 24 columns, got 25" in refusal(two)
    write(two, u_item=f"10|A||||{flags(2)[:-1]}7\n")
    assert "Row #1: CSV conversion error to bool: invalid value '7'" in refusal(two)


def test_a_file_larger_than_one_block_of_arrow_keeps_its_order(tmp_path):
    lines = [f"{user},{movie},3.5,{user * movie}" for user in range(1, 301) for movie in range(1, 301)]
    write(tmp_path, ratings_csv="userId,movieId,rating,timestamp\n" + "\n".join(lines), movies_csv=MOVIES)
    raw = read_movielens(tmp_path)
    assert raw.rows["userId"].num_chunks > 1
    assert raw.rows["timestamp"] == pa.chunked_array([[u * m for u in range(1, 301) for m in range(1, 301)]])
