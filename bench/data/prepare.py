"""prepare: preparing generated Criteo rows, from text to encoded Parquet, against Polars and DuckDB.

All read the same files, split by day, fill, clip, take logarithms of and normalize 13 numbers, encode 26 categories by
frequency, and write Parquet. The peers (`bench.peers.prepare`) hold all rows in memory, and write no workflow, held-out
rows or checksums. Rates are rows per second of CPU time, all threads included, and of wall time.

A third side is the reader of recipe files (13 numbers, 26 string columns), against Criteo's own reader, which first
converts categories to numbers; both split at random. Memory is the peak of a separate process above its imports, for
data of two sizes.
"""

import math
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.harness.memory import peak_above_imports
from bench.harness.report import Report, median_ratio, medians_of, scratch_directory, take_turns
from bench.peers.processes import python_with
from rankline.workflows.core.progress import SILENT
from rankline.workflows.data.criteo.dataset import CRITEO
from rankline.workflows.data.criteo.generator import generate_criteo
from rankline.workflows.data.criteo.reader import CATEGORIES, LABEL, NUMBERS
from rankline.workflows.data.tabular.config import ColumnConfig, FilesConfig, LabelConfig, TableConfig
from rankline.workflows.data.tabular.dataset import table_dataset
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.prepare import prepare

ROWS = 10_000_000
SIZES = (1_000_000, 4_000_000)  # numbers of rows, for memory; the first also for the two readers
CARDINALITY_SCALE = 0.001  # few enough ids for both sizes to contain nearly all
CONFIG, ENCODING = PrepareConfig(frequency_threshold=5), RowsConfig(split="time", valid_share=0.2)
OURS, POLARS, DUCKDB, TABLE, OWN_READER = "rankline", "polars", "duckdb", "table", "criteo's reader"
PEERS = {POLARS: ("in_polars.py", "polars==2.1.0"), DUCKDB: ("in_duckdb.py", "duckdb==2.0.1")}


def run(repeats: int, *, num_rows: int = ROWS, sizes: tuple[int, int] = SIZES) -> Report:
    with scratch_directory() as directory:
        raw = {size: generated(directory / f"raw-{size}", size) for size in sorted({num_rows, *sizes})}
        ours, fewer = partial(prepare_criteo, raw[num_rows], directory / "prepared"), raw[sizes[0]]
        works: dict[str, tuple[int, Callable[[], Times]]] = {
            OURS: (num_rows, partial(_times, ours)),
            **{side: (num_rows, partial(_times_of_peer, side, raw[num_rows], directory / side)) for side in PEERS},
            TABLE: (sizes[0], partial(_times, partial(prepare_table, fewer, directory / "table"))),
            OWN_READER: (
                sizes[0],
                partial(_times, partial(prepare_criteo, fewer, directory / "prepared", RowsConfig())),
            ),
        }
        walls: dict[str, list[float]] = {side: [] for side in works}

        def rows_per_cpu_s(side: str) -> float:
            size, work = works[side]
            wall_s, cpu_s = work()
            walls[side].append(size / wall_s)
            return size / cpu_s

        rates = take_turns({side: partial(rows_per_cpu_s, side) for side in works}, repeats)
        walls = {side: values[1:] for side, values in walls.items()}  # without the discarded turn
        results = medians_of(
            {side: {"rows_per_cpu_s": rates[side], "rows_per_s": walls[side]} for side in works},
        )
        ratios = {f"prepare_vs_{side}": median_ratio(rates, OURS, side) for side in PEERS}
        ratios |= {f"prepare_wall_vs_{side}": median_ratio(walls, OURS, side) for side in PEERS}
        ratios["prepare_vs_criteo_reader"] = median_ratio(rates, TABLE, OWN_READER)
        for side, prefix, prepared in ((OURS, "", prepare_criteo), (TABLE, "table_", prepare_table)):
            peaks = {size: peak_above_imports(prepared, raw[size], directory / "peak") for size in sizes}
            results[side] |= {f"peak_memory_bytes@{size}": float(peak) for size, peak in peaks.items()}
            ratios[f"{prefix}memory_growth"] = peaks[sizes[1]] / peaks[sizes[0]]
    return Report(name="prepare", results=results, ratios=ratios)


Times = tuple[float, float]
"""Seconds of wall time and of CPU time."""


def prepare_criteo(raw: Path, output: Path, encoding: RowsConfig = ENCODING) -> None:
    prepare(CRITEO, CRITEO.read(raw), output, CONFIG, encoding, source="generated")


def criteo_table() -> TableConfig:
    """Describe Criteo's files as a recipe file would: label, numbers and categories, without a header."""
    names = {column: f"column_{place}" for place, column in enumerate((LABEL, *NUMBERS, *CATEGORIES), 1)}
    number, category = ColumnConfig(type="int", role="numeric", scale="log"), ColumnConfig(role="id")
    return TableConfig(
        data=FilesConfig(files=("day_*",), format="csv", delimiter="\t", header=False),
        columns={names[name]: number for name in NUMBERS} | {names[name]: category for name in CATEGORIES},
        labels={names[LABEL]: LabelConfig()},
    )


def prepare_table(raw: Path, output: Path) -> None:
    dataset = table_dataset("table", criteo_table(), raw)
    prepare(dataset, dataset.read(raw), output, CONFIG, RowsConfig(), source="generated")


def generated(directory: Path, num_rows: int) -> Path:
    generate_criteo(directory, num_rows=num_rows, seed=1, cardinality_scale=CARDINALITY_SCALE, progress=SILENT)
    return directory


def _times(work: Callable[[], None]) -> Times:
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begin_s, time.process_time() - begin_cpu_s


def _times_of_peer(side: str, raw: Path, output: Path) -> Times:
    file, package = PEERS[side]
    num_valid = math.ceil(ENCODING.valid_share * len(list(raw.glob("day_*"))))  # all days have the same size
    script = Path(__file__).parents[1] / "peers" / "prepare" / file
    command = [*python_with(package), str(script), str(raw), str(output)]
    command += [str(num_valid), str(CONFIG.frequency_threshold)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    wall_s, cpu_s = map(float, done.stdout.split())
    return wall_s, cpu_s
