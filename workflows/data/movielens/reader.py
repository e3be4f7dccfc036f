"""Reader for the three MovieLens file layouts, and definitions of the downloadable archives.

    ml-latest, ml-25m   ratings.csv, movies.csv                 CSV with a header, UTF-8
    ml-1m               ratings.dat, movies.dat                 fields separated by `::`, no header, Latin-1
    ml-100k             u.data, u.item, u.genre                 tabs and bars, no header, Latin-1, genres as flags

F. Maxwell Harper and Joseph A. Konstan: The MovieLens Datasets: History and Context. ACM TiiS 5(4), 2015.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from rankline.workflows.core.errors import DataError
from rankline.workflows.preprocess.raw import RawData, fingerprint_of, latest_of_each_pair
from rankline.workflows.schema.ragged import arrow_lists, offsets_of
from rankline.workflows.storage.download import Archive

USER_ID, MOVIE_ID, RATING, TIMESTAMP = "userId", "movieId", "rating", "timestamp"
TITLE, GENRES = "title", "genres"
RATINGS_SCHEMA = pa.schema(
    {USER_ID: pa.int64(), MOVIE_ID: pa.int64(), RATING: pa.float32(), TIMESTAMP: pa.int64()}
)  # fmt: skip
CATALOG_SCHEMA = pa.schema({MOVIE_ID: pa.int64(), TITLE: pa.string(), GENRES: pa.list_(pa.string())})

_UNIT_SEPARATOR = "\x1f"
_ROOT = "https://files.grouplens.org/datasets/movielens"
MOVIELENS_ARCHIVES = {
    archive.name: archive
    for archive in (
        # GroupLens updates this archive, so its MD5 cannot be fixed here; the published .md5 file is used.
        Archive(name="ml-latest-small", url=f"{_ROOT}/ml-latest-small.zip"),
        Archive(name="ml-1m", url=f"{_ROOT}/ml-1m.zip", md5="c4d9eecfca2ab87c1945afe126590906"),
        Archive(name="ml-25m", url=f"{_ROOT}/ml-25m.zip", md5="6b51fb2759a8657d3bfcbfc42b592ada"),
    )
}


@dataclass(frozen=True, kw_only=True)
class _TextFile:
    path: Path
    schema: pa.Schema
    columns: Sequence[str] | None = None  # of a file without a header
    delimiter: str = ","
    encoding: str = "utf-8"


@dataclass(frozen=True, kw_only=True)
class _Layout:
    files: tuple[str, ...]
    read: Callable[[Path], tuple[pa.Table, pa.Table]]


def read_movielens(directory: Path) -> RawData:
    """Read ratings and movies from a directory in any of the three MovieLens layouts.

    Rows without user, movie or rating are dropped ("missing value"), and of several ratings of a movie by the same user
    only the latest is kept ("duplicate"). Ratings of movies that are not in the catalog and rows without a timestamp,
    which become 0, are kept and noted. "(no genres listed)" is an ordinary genre; an empty cell is an empty list.

    Raises:
        DataError: a file is missing, empty, truncated, or has invalid values in its columns.
    """
    layout = _detect(directory)
    ratings, catalog = layout.read(directory)
    _check_ids(catalog, directory / layout.files[1])
    rows, dropped, noticed = _clean(ratings, catalog)
    if rows.num_rows == 0:
        raise DataError(
            f"{directory / layout.files[0]}: every row lacks a user, a movie or a rating. Provide complete rows."
        )
    return RawData(
        rows=rows,
        catalog=catalog,
        dropped=dropped,
        noticed=noticed,
        fingerprint=fingerprint_of(directory / name for name in layout.files),
    )


def _detect(directory: Path) -> _Layout:
    if not directory.is_dir():
        raise DataError(f"{directory} is not a directory. Pass the directory that contains the MovieLens files.")
    for layout in _LAYOUTS:
        missing = [name for name in layout.files if not (directory / name).is_file()]
        if not missing:
            return layout
        if len(missing) < len(layout.files):
            raise DataError(
                f"{directory} lacks {', '.join(missing)}. Expected {', '.join(layout.files)} in the same directory."
            )
    known = "; ".join(", ".join(layout.files) for layout in _LAYOUTS)
    raise DataError(
        f"{directory} contains no MovieLens data. Expected {known}. Pass the directory that contains these files."
    )


def _check_ids(catalog: pa.Table, path: Path) -> None:
    if catalog[MOVIE_ID].null_count:
        raise DataError(
            f"{path}: {catalog[MOVIE_ID].null_count} rows lack {MOVIE_ID}. Fill in the values or remove these rows."
        )
    counts = catalog[MOVIE_ID].value_counts()
    repeated = pc.filter(counts.field("values"), pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise DataError(
            f"{path}: {MOVIE_ID} {repeated[0]} occurs more than once ({len(repeated)} such ids), expected one "
            "line per movie. Remove the duplicates."
        )


def _clean(rows: pa.Table, catalog: pa.Table) -> tuple[pa.Table, dict[str, int], dict[str, int]]:
    needed = [rows[name] for name in (USER_ID, MOVIE_ID, RATING)]
    whole = rows
    if any(column.null_count for column in needed):
        whole = rows.filter(reduce(pc.and_, (column.is_valid() for column in needed)))
    timestamps = whole[TIMESTAMP].fill_null(0).to_numpy()
    keep = latest_of_each_pair(whole[USER_ID], whole[MOVIE_ID], timestamps)
    unique = whole if keep.all() else whole.filter(keep)
    num_untimed = unique[TIMESTAMP].null_count
    if num_untimed:
        place = unique.schema.get_field_index(TIMESTAMP)
        unique = unique.set_column(place, TIMESTAMP, unique[TIMESTAMP].fill_null(0))
    known = pc.is_in(unique[MOVIE_ID], value_set=catalog[MOVIE_ID].combine_chunks())
    num_known = pc.sum(known, min_count=0).as_py()
    dropped = {"missing value": rows.num_rows - whole.num_rows, "duplicate": whole.num_rows - unique.num_rows}
    noticed = {"rating of an unknown movie": unique.num_rows - num_known, "missing timestamp": num_untimed}
    return unique, _present(dropped), _present(noticed)


def _present(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _read_csv_layout(directory: Path) -> tuple[pa.Table, pa.Table]:
    ratings = _read(_TextFile(path=directory / "ratings.csv", schema=RATINGS_SCHEMA))
    movies = _read(_TextFile(path=directory / "movies.csv", schema=_MOVIES_SCHEMA))
    return ratings, _split_genres(movies)


def _read_double_colon_layout(directory: Path) -> tuple[pa.Table, pa.Table]:
    ratings = _TextFile(
        path=directory / "ratings.dat", schema=RATINGS_SCHEMA, columns=RATINGS_SCHEMA.names, delimiter="::"
    )
    movies = _TextFile(
        path=directory / "movies.dat",
        schema=_MOVIES_SCHEMA,
        columns=_MOVIES_SCHEMA.names,
        delimiter="::",
        encoding="latin-1",
    )
    return _read(ratings), _split_genres(_read(movies))


def _read_flags_layout(directory: Path) -> tuple[pa.Table, pa.Table]:
    genres = _TextFile(
        path=directory / "u.genre",
        schema=pa.schema({"name": pa.string(), "position": pa.int64()}),
        columns=("name", "position"),
        delimiter="|",
        encoding="latin-1",
    )
    names = _read(genres).sort_by("position")["name"].to_pylist()
    ratings = _TextFile(path=directory / "u.data", schema=RATINGS_SCHEMA, columns=RATINGS_SCHEMA.names, delimiter="\t")
    movies = _TextFile(
        path=directory / "u.item",
        schema=pa.schema({MOVIE_ID: pa.int64(), TITLE: pa.string(), **dict.fromkeys(names, pa.bool_())}),
        columns=(MOVIE_ID, TITLE, "release date", "video release date", "address", *names),
        delimiter="|",
        encoding="latin-1",
    )
    return _read(ratings), _gather_flags(_read(movies), names)


def _split_genres(movies: pa.Table) -> pa.Table:
    """Convert "A|B" to ["A", "B"], and "" to []."""
    empty = pa.scalar([], CATALOG_SCHEMA.field(GENRES).type)
    lists = pc.if_else(pc.equal(movies[GENRES], ""), empty, pc.split_pattern(movies[GENRES], "|"))
    return pa.table([movies[MOVIE_ID], movies[TITLE], lists], schema=CATALOG_SCHEMA)


def _gather_flags(movies: pa.Table, names: list[str]) -> pa.Table:
    """Combine the flag columns of all genres into one list column."""
    flags = np.column_stack([movies[name].fill_null(False).to_numpy() for name in names])
    values = pa.array(names, pa.string()).take(pa.array(np.nonzero(flags)[1]))
    lists = arrow_lists(values, offsets_of(flags.sum(axis=1)))
    return pa.table([movies[MOVIE_ID], movies[TITLE], lists], schema=CATALOG_SCHEMA)


_MOVIES_SCHEMA = pa.schema({MOVIE_ID: pa.int64(), TITLE: pa.string(), GENRES: pa.string()})
_LAYOUTS = (
    _Layout(files=("ratings.csv", "movies.csv"), read=_read_csv_layout),
    _Layout(files=("ratings.dat", "movies.dat"), read=_read_double_colon_layout),
    _Layout(files=("u.data", "u.item", "u.genre"), read=_read_flags_layout),
)


def _read(file: _TextFile) -> pa.Table:
    try:
        if file.path.stat().st_size == 0:
            raise DataError(f"{file.path} is empty, expected rows. Download or write it again.")
        if file.columns is None:
            _check_header(file)
        try:
            table = _read_csv(file, use_threads=True)
        except pa.ArrowInvalid:
            table = _read_csv(file, use_threads=False)  # Arrow's message then contains the row number
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{file.path}: {str(error).splitlines()[0]}. Fix or remove the row; if the file was truncated, "
            "download it again."
        ) from None
    except OSError as error:
        raise DataError(f"{file.path} cannot be read ({error.strerror or error}).") from None
    if table.num_rows == 0:
        raise DataError(f"{file.path} has a header but no rows. Download or write it again.")
    for name in (f.name for f in file.schema if pa.types.is_floating(f.type)):
        if pc.all(pc.is_finite(table[name])).as_py() is False:
            row = pc.index(pc.is_finite(table[name]), False).as_py() + 1
            raise DataError(f"{file.path}, row {row}: {name} is not a finite 32-bit number. Fix the value.")
    return table


def _read_csv(file: _TextFile, *, use_threads: bool) -> pa.Table:
    return pa_csv.read_csv(
        _single_character_delimited(file),
        read_options=pa_csv.ReadOptions(column_names=file.columns, encoding=file.encoding, use_threads=use_threads),
        parse_options=pa_csv.ParseOptions(
            delimiter=_UNIT_SEPARATOR if len(file.delimiter) > 1 else file.delimiter,
            quote_char='"' if file.delimiter == "," else False,
        ),
        convert_options=pa_csv.ConvertOptions(column_types=file.schema, include_columns=file.schema.names),
    )


def _single_character_delimited(file: _TextFile) -> str | pa.BufferReader:
    """Return a path or buffer from which Arrow can read `file`, because Arrow requires a single-character delimiter."""
    if len(file.delimiter) == 1:
        return str(file.path)
    content = file.path.read_bytes().replace(file.delimiter.encode(), _UNIT_SEPARATOR.encode())
    return pa.BufferReader(content)


def _check_header(file: _TextFile) -> None:
    with file.path.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        found = next(csv.reader(stream), [])
    for name in file.schema.names:
        if name in found:
            continue
        for other in found:
            if other.strip().casefold() == name.casefold():
                raise DataError(
                    f"{file.path} has a column named {other!r}, expected {name!r}. Rename the column in the first line."
                )
        raise DataError(
            f"{file.path} has no column {name!r}. Found {', '.join(found)}; expected {', '.join(file.schema.names)} in "
            "the first line."
        )
