"""prepare: preparing generated Criteo rows, from text to encoded Parquet, against the same steps in plain pandas.

A third side is the reader of recipe files (13 numbers, 26 string columns), against Criteo's own reader, which first
converts categories to numbers; both split at random.

All read the same files, split by day, fill, clip, take logarithms of and normalize 13 numbers, encode 26 categories by
frequency, and write Parquet. pandas holds all rows in memory, and does not write a workflow, held-out rows or
checksums. Rates are rows per second of CPU time including all threads, so using more cores gains nothing. Memory is the
peak of a separate process above its imports, for data of two sizes.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from bench.harness.memory import peak_above_imports
from bench.harness.report import Report, Turn, median_ratio, medians, scratch_directory, take_turns
from rankline.workflows.core.progress import SILENT
from rankline.workflows.data.criteo.dataset import CRITEO
from rankline.workflows.data.criteo.generator import generate_criteo
from rankline.workflows.data.criteo.reader import CATEGORIES, LABEL, NUMBERS
from rankline.workflows.data.tabular.config import ColumnConfig, FilesConfig, LabelConfig, TableConfig
from rankline.workflows.data.tabular.dataset import table_dataset
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.prepare import prepare

ROWS = 1_000_000
SIZES = (1_000_000, 4_000_000)  # numbers of rows, for memory
CARDINALITY_SCALE = 0.001  # few enough ids for both sizes to contain nearly all
CONFIG, ENCODING = PrepareConfig(frequency_threshold=5), RowsConfig(split="time", valid_share=0.2)
OURS, PANDAS, TABLE, OWN_READER = "rankline", "pandas", "table", "criteo's reader"
_NUMBERS = [name for name in CRITEO.inputs if name.startswith("I")]
_CATEGORIES = [name for name in CRITEO.inputs if name.startswith("C")]


def run(repeats: int, *, num_rows: int = ROWS, sizes: tuple[int, int] = SIZES) -> Report:
    with scratch_directory() as directory:
        raw = {size: generated(directory / f"raw-{size}", size) for size in sorted({num_rows, *sizes})}
        sides: dict[str, Turn] = {
            OURS: partial(rate, num_rows, lambda: prepare_criteo(raw[num_rows], directory / "prepared")),
            PANDAS: partial(rate, num_rows, lambda: _prepare_with_pandas(raw[num_rows], directory / "pandas")),
            TABLE: partial(rate, num_rows, lambda: prepare_table(raw[num_rows], directory / "table")),
            OWN_READER: partial(
                rate, num_rows, lambda: prepare_criteo(raw[num_rows], directory / "prepared", RowsConfig())
            ),
        }
        rates = take_turns(sides, repeats)
        results = medians(rates, "rows_per_cpu_s")
        ratios = {
            "prepare_vs_pandas": median_ratio(rates, OURS, PANDAS),
            "prepare_vs_criteo_reader": median_ratio(rates, TABLE, OWN_READER),
        }
        for side, prefix, prepared in ((OURS, "", prepare_criteo), (TABLE, "table_", prepare_table)):
            peaks = {size: peak_above_imports(prepared, raw[size], directory / "peak") for size in sizes}
            results[side] |= {f"peak_memory_bytes@{size}": float(peak) for size, peak in peaks.items()}
            ratios[f"{prefix}memory_growth"] = peaks[sizes[1]] / peaks[sizes[0]]
    return Report(name="prepare", results=results, ratios=ratios)


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


def rate(num_rows: int, work: Callable[[], None]) -> float:
    begin = time.process_time()
    work()
    return num_rows / (time.process_time() - begin)


def _prepare_with_pandas(raw: Path, output: Path) -> None:
    names = [*CRITEO.labels, *_NUMBERS, *_CATEGORIES]
    days = [
        pd.read_csv(path, sep="\t", header=None, names=names, dtype=dict.fromkeys(_CATEGORIES, str))
        for path in sorted(raw.glob("day_*"), key=lambda path: int(path.name.removeprefix("day_")))
    ]
    rows = pd.concat(days, ignore_index=True)
    # Validate on the fewest last days that hold the share; all generated days have the same size.
    num_train = len(rows) - len(days[-1]) * int(np.ceil(ENCODING.valid_share * len(rows) / len(days[-1])))
    del days
    numbers = np.log1p(rows[_NUMBERS].fillna(0).clip(lower=0).astype(np.float32))
    train = numbers.iloc[:num_train]
    encoded = (numbers - train.mean()) / train.std()
    for name in _CATEGORIES:
        counts = rows[name].iloc[:num_train].value_counts()
        kept = counts.index[counts >= CONFIG.frequency_threshold]
        ids = rows[name].map(pd.Series(np.arange(3, 3 + len(kept)), index=kept)).fillna(2).astype(np.int64)
        encoded[name] = ids.mask(rows[name].isna(), 1)
    encoded[list(CRITEO.labels)] = rows[list(CRITEO.labels)].astype(np.float32)
    output.mkdir(exist_ok=True)
    encoded.iloc[:num_train].to_parquet(output / "train.parquet", index=False)
    encoded.iloc[num_train:].to_parquet(output / "valid.parquet", index=False)
