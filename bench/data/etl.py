"""etl: preparing Criteo rows, from text to encoded Parquet, with two single-threaded Dask workers instead of one.

A turn is `rankline prepare --dask local:N` without starting the workers: reading the files once for their checksums,
then reading, fitting and encoding in the workers, then the checksums of the artifact. All turns must produce the same
files. The CPU time of this process is the serial part that more workers cannot speed up.
"""

import statistics
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil

from bench.harness.memory import peak_bytes
from bench.harness.report import Report, Turn, median_ratio, scratch_directory, take_turns
from rankline.workflows.core.progress import SILENT
from rankline.workflows.data.criteo.dataset import CRITEO
from rankline.workflows.data.criteo.generator import generate_criteo
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import DaskConfig, PrepareConfig
from rankline.workflows.preprocess.dask_cluster import open_pool
from rankline.workflows.preprocess.executor import Pool
from rankline.workflows.preprocess.prepare import prepare

ROWS = 4_000_000
CARDINALITY_SCALE = 0.01
CONFIG, ENCODING = PrepareConfig(frequency_threshold=5), RowsConfig(split="time", valid_share=0.2)
NUMBERS = (1, 2)  # numbers of workers
_OF_THE_RUN = {"workflow/workflow.pkl", "workflow/metadata.json"}  # contain a timestamp from NVTabular


def run(repeats: int, *, num_rows: int = ROWS) -> Report:
    with scratch_directory() as directory, ExitStack() as stack:
        raw = directory / "raw"
        generate_criteo(raw, num_rows=num_rows, seed=1, cardinality_scale=CARDINALITY_SCALE, progress=SILENT)
        sides = {}
        for number in NUMBERS:
            config = DaskConfig(dask=f"local:{number}", dask_timeout_s=300)
            before = _descendants()
            pool = stack.enter_context(open_pool(config, directory / _side(number)))
            sides[_side(number)] = _Side(raw, directory / _side(number), pool, _descendants() - before)
        turns: dict[str, Turn] = {name: partial(side.rows_per_s, num_rows) for name, side in sides.items()}
        rates = take_turns(turns, repeats)
        _check_same({checksums for side in sides.values() for checksums in side.checksums})
        results = {
            name: {
                "rows_per_s": statistics.median(values),
                "client_cpu_s": sides[name].client_cpu_s / (repeats + 1),
                "workers_cpu_s": sides[name].workers_cpu_s / (repeats + 1),
                "worker_peak_bytes": float(sides[name].worker_peak_bytes),
            }
            for name, values in rates.items()
        }
    few, many = map(_side, NUMBERS)
    return Report(name="etl", results=results, ratios={"etl_speedup": median_ratio(rates, many, few)})


class _Side:
    def __init__(self, raw: Path, directory: Path, pool: Pool, workers: set[psutil.Process]) -> None:
        self._raw, self._output, self._pool, self._workers = raw, directory / "prepared", pool, workers
        self.checksums: list[frozenset[tuple[str, str]]] = []
        self.client_cpu_s, self.workers_cpu_s = 0.0, 0.0

    def rows_per_s(self, num_rows: int) -> float:
        """Prepare once, and return rows per second; adds to the CPU times of client and workers."""
        begin_s, client_s, workers_s = time.perf_counter(), time.process_time(), self._cpu_s()
        prepared = prepare(
            CRITEO, CRITEO.read(self._raw), self._output, CONFIG, ENCODING, source="generated", pool=self._pool
        )
        elapsed_s = time.perf_counter() - begin_s
        self.client_cpu_s += time.process_time() - client_s
        self.workers_cpu_s += self._cpu_s() - workers_s
        files = prepared.manifest.files
        self.checksums.append(frozenset((name, files[name].sha256) for name in files.keys() - _OF_THE_RUN))
        return num_rows / elapsed_s

    @property
    def worker_peak_bytes(self) -> int:
        """Peak memory of any worker, including its imports."""
        return max(peak_bytes(worker.pid) for worker in self._workers)

    def _cpu_s(self) -> float:
        return sum(times.user + times.system for times in (worker.cpu_times() for worker in self._workers))


def _side(number: int) -> str:
    return f"{number} worker{'s' * (number > 1)}"


def _descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _check_same(found: set[frozenset[tuple[str, str]]]) -> None:
    first, *others = found
    for other in others:
        raise RuntimeError(f"turns wrote different files: {sorted({name for name, _ in first ^ other})}")
