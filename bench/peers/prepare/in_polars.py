"""Criteo's preprocessing in Polars: `python in_polars.py RAW OUTPUT NUM_VALID_DAYS MIN_COUNT`.

Prints the seconds of wall time and of CPU time that it took. Imports nothing from Rankline.
"""

import sys
import time
from pathlib import Path

import polars as pl

NUMBERS, CATEGORIES = [f"I{number}" for number in range(1, 14)], [f"C{number}" for number in range(1, 27)]
SCHEMA = {"label": pl.Float32, **dict.fromkeys(NUMBERS, pl.Float32), **dict.fromkeys(CATEGORIES, pl.String)}


def main(raw: Path, output: Path, num_valid_days: int, min_count: int) -> None:
    days = sorted(raw.glob("day_*"), key=lambda path: int(path.name.removeprefix("day_")))
    train, valid = (
        pl.read_csv(part, separator="\t", has_header=False, schema=SCHEMA, quote_char=None).with_columns(
            pl.col(NUMBERS).fill_null(0).clip(0).log1p()
        )
        for part in (days[:-num_valid_days], days[-num_valid_days:])
    )
    means, deviations = (
        frame.row(0) for frame in (train.select(pl.col(NUMBERS).mean()), train.select(pl.col(NUMBERS).std()))
    )
    encoded = [(pl.col(name) - mean) / std for name, mean, std in zip(NUMBERS, means, deviations, strict=True)]
    for name in CATEGORIES:
        counts = train[name].drop_nulls().value_counts(sort=True)
        kept = pl.Enum(counts.filter(pl.col("count") >= min_count)[name])
        ids = pl.col(name).cast(kept, strict=False).to_physical().cast(pl.Int64) + 3
        encoded.append(pl.when(pl.col(name).is_null()).then(1).otherwise(ids.fill_null(2)).alias(name))
    output.mkdir(exist_ok=True)
    for name, rows in (("train", train), ("valid", valid)):
        rows.select("label", *encoded).write_parquet(output / f"{name}.parquet", compression="snappy")


if __name__ == "__main__":
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    print(time.perf_counter() - begin_s, time.process_time() - begin_cpu_s)
