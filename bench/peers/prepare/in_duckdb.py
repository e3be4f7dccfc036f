"""Criteo's preprocessing in DuckDB: `python in_duckdb.py RAW OUTPUT NUM_VALID_DAYS MIN_COUNT`.

Prints the seconds of wall time and of CPU time that it took. Imports nothing from Rankline.
"""

import sys
import time
from pathlib import Path

import duckdb

NUMBERS, CATEGORIES = [f"I{number}" for number in range(1, 14)], [f"C{number}" for number in range(1, 27)]
TYPES = {"label": "FLOAT", **dict.fromkeys(NUMBERS, "FLOAT"), **dict.fromkeys(CATEGORIES, "VARCHAR")}


def main(raw: Path, output: Path, num_valid_days: int, min_count: int) -> None:
    days = sorted(raw.glob("day_*"), key=lambda path: int(path.name.removeprefix("day_")))
    database = duckdb.connect()
    database.execute("SET preserve_insertion_order = false")
    numbers = ", ".join(f"ln(1 + greatest(coalesce({name}, 0), 0))::FLOAT AS {name}" for name in NUMBERS)
    for split, files in (("train", days[:-num_valid_days]), ("valid", days[-num_valid_days:])):
        names = [str(path) for path in files]
        database.execute(
            f"CREATE TABLE {split} AS SELECT label, {numbers}, {', '.join(CATEGORIES)} "
            f"FROM read_csv({names}, delim = '\t', header = false, columns = {TYPES}, quote = '', auto_detect = false)"
        )
    statistics = ", ".join(f"avg({name}) AS {name}_mean, stddev_samp({name}) AS {name}_std" for name in NUMBERS)
    database.execute(f"CREATE TABLE statistics AS SELECT {statistics} FROM train")
    for name in CATEGORIES:
        database.execute(
            f"CREATE TABLE {name}_ids AS SELECT {name} AS key, 2 + row_number() OVER (ORDER BY count(*) DESC) AS id "
            f"FROM train WHERE {name} IS NOT NULL GROUP BY {name} HAVING count(*) >= {min_count}"
        )
    output.mkdir(exist_ok=True)
    numbers = ", ".join(f"(({name} - {name}_mean) / {name}_std)::FLOAT AS {name}" for name in NUMBERS)
    ids = ", ".join(
        f"CASE WHEN {name} IS NULL THEN 1 ELSE coalesce({name}_ids.id, 2) END AS {name}" for name in CATEGORIES
    )
    joins = " ".join(f"LEFT JOIN {name}_ids ON {name} = {name}_ids.key" for name in CATEGORIES)
    for split in ("train", "valid"):
        database.execute(
            f"COPY (SELECT label, {numbers}, {ids} FROM {split} CROSS JOIN statistics {joins}) "
            f"TO '{output / split}.parquet' (FORMAT parquet, COMPRESSION snappy)"
        )


if __name__ == "__main__":
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    print(time.perf_counter() - begin_s, time.process_time() - begin_cpu_s)
