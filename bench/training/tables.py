"""tables: arbitrary tables with a recipe file, from files to scores.

`prepare`: the same generated Criteo rows, from the same files, with the generic table reader (13 numbers, 26 string
columns) and with Criteo's own reader, which first converts categories to numbers; in turns, in rows per second of CPU
time. Memory of the generic reader is the peak of a separate process above its imports, for data of two sizes.

`click log`: a generated log (string ids, nulls, a timestamp, 20 columns), with the two commands that a user types.
`bench.serving.forest`: `model: lightgbm`, served. `bench.training.table_quality`: quality of the recipe's network on
real tables.
"""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from bench.data.prepare import generated, rate
from bench.harness.click_log import write_click_log
from bench.harness.memory import peak_above_imports
from bench.harness.report import Report, Turn, median_ratio, medians, scratch_directory, take_turns
from bench.serving import forest
from bench.training import table_quality
from rankline.workflows.data.criteo.dataset import CRITEO
from rankline.workflows.data.criteo.reader import CATEGORIES, LABEL, NUMBERS
from rankline.workflows.data.tabular.config import ColumnConfig, FilesConfig, LabelConfig, TableConfig
from rankline.workflows.data.tabular.dataset import table_dataset
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.prepare import prepare

ROWS = 1_000_000
SIZES = (1_000_000, 4_000_000)  # numbers of rows, for memory
LOG_ROWS = 1_000_000
CONFIG, ENCODING = PrepareConfig(frequency_threshold=5), RowsConfig()
TABLE, OWN_READER, LOG = "table", "criteo's reader", "click log"


def run(
    repeats: int,
    *,
    data: Path | None = None,
    num_rows: int = ROWS,
    sizes: tuple[int, int] = SIZES,
    log_rows: int = LOG_ROWS,
    forest_rows: int = forest.ROWS,
) -> Report:
    ratios: dict[str, float] = {}
    with scratch_directory() as directory:
        raw = {size: generated(directory / f"raw-{size}", size) for size in sorted({num_rows, *sizes})}
        sides: dict[str, Turn] = {
            TABLE: partial(rate, num_rows, lambda: prepare_table(raw[num_rows], directory / "table")),
            OWN_READER: partial(rate, num_rows, lambda: _prepare_criteo(raw[num_rows], directory / "criteo")),
        }
        rates = take_turns(sides, repeats)
        peaks = {size: peak_above_imports(prepare_table, raw[size], directory / "table") for size in sizes}
        results = medians(rates, "rows_per_cpu_s")
        results[TABLE] |= {f"peak_memory_bytes@{size}": float(peak) for size, peak in peaks.items()}
        results[LOG] = _click_log(directory / "log", log_rows)
        (directory / "forest").mkdir()
        served, ratios = forest.measure(directory / "forest", repeats, forest_rows)
        results |= served
        if data is not None:
            qualities, of_quality = table_quality.measure(data, directory / "quality", repeats)
            results |= qualities
            ratios |= of_quality
    ratios |= {
        "prepare_vs_criteo_reader": median_ratio(rates, TABLE, OWN_READER),
        "prepare_memory_growth": peaks[sizes[1]] / peaks[sizes[0]],
    }
    return Report(name="tables", results=results, ratios=ratios)


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
    prepare(dataset, dataset.read(raw), output, CONFIG, ENCODING, source="generated")


def _prepare_criteo(raw: Path, output: Path) -> None:
    prepare(CRITEO, CRITEO.read(raw), output, CONFIG, ENCODING, source="generated")


def _click_log(directory: Path, num_rows: int) -> dict[str, float]:
    directory.mkdir()
    write_click_log(directory / "clicks.csv", num_rows)
    seconds = {}
    for verb, *words in (("init", "clicks.csv"), ("run", "rankline.yaml", "--json", "result.json")):
        begin = time.perf_counter()
        command = [str(Path(sys.executable).with_name("rankline")), verb, *words]
        subprocess.run(command, cwd=directory, check=True, capture_output=True)
        seconds[f"{verb}_s"] = time.perf_counter() - begin
    return seconds | {"total_s": sum(seconds.values()), "num_rows": float(num_rows)}
