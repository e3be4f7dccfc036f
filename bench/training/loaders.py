"""loaders: Rankline's loader against other ways to get shuffled batches from Parquet, each as its own experts use it.

All sides read two ids and a label of the same rows from the page cache, in turns, each in a process of its own; imports
and conversions to a peer's own format do not count. The peers are short files in `bench/peers/loaders`: PyTorch's
DataLoader over Parquet, Hugging Face datasets, MosaicML Streaming, Ray Data, tf.data over Arrow, and NumPy arrays in
memory with a permutation, with and without the time to read them.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

from bench.harness.report import Report, Turn, median_ratio, medians, scratch_directory, take_turns
from bench.harness.synthetic_rows import write_rows
from bench.peers.processes import output_of, python_with
from rankline.terminal.console import note
from rankline.workflows.core.errors import ConfigError

NUM_ROWS, BATCH_SIZE = 10_000_000, 32_768
_TORCH = f"torch=={version('torch').partition('+')[0]}"
_FOLDER = Path(__file__).parents[1] / "peers" / "loaders"
_OURS = "rankline"
PEERS: Mapping[str, tuple[str, tuple[str, ...] | None, tuple[str, ...]]] = {
    _OURS: ("rankline_loader.py", None, ()),
    "PyTorch DataLoader": ("torch_parquet.py", None, ()),
    "tf.data": ("tf_data.py", None, ()),
    "arrays in memory": ("arrays.py", None, ()),
    "arrays, with reading": ("arrays.py", None, ("read",)),
    "Hugging Face datasets": ("huggingface.py", ("datasets==5.2.0",), ()),
    "MosaicML Streaming": ("mosaicml.py", ("mosaicml-streaming==0.13.0", _TORCH, "pyarrow"), ()),
    "Ray Data": ("ray_data.py", ("ray[data]==2.60.0",), ()),
}
"""Side → script, packages of its environment (None for this one), and further arguments."""


def run(
    repeats: int, *, num_rows: int = NUM_ROWS, peers: Sequence[str] = tuple(PEERS), max_turn_s: float = 8.0
) -> Report:
    left_out: dict[str, str] = {}
    with scratch_directory() as directory:
        write_rows(directory, num_rows)
        peak_mb: dict[str, float] = {}
        sides: dict[str, Turn] = {}
        for name in peers:
            try:
                _rate(name, directory, 0.0, peak_mb)  # installs and converts
                sides[name] = partial(_rate, name, directory, max_turn_s, peak_mb)
            except ConfigError as error:
                note(f"{name} was left out: {error}")
                left_out[name] = str(error)
        rates = take_turns(sides, repeats)
    others = [name for name in sides if name != _OURS]
    ratios = {f"vs_{_key(name)}": median_ratio(rates, _OURS, name) for name in others}
    ratios["vs_best_loader"] = min(ratios.values())
    results = {side: {**rate, "peak_mb": peak_mb[side]} for side, rate in medians(rates, "rows_per_s").items()}
    return Report(name="loaders", results=results, ratios=ratios, left_out=left_out)


def _key(name: str) -> str:
    return name.lower().replace(",", "").replace(".", "_").replace(" ", "_")


def _rate(name: str, directory: Path, max_turn_s: float, peak_mb: dict[str, float]) -> float:
    script, packages, options = PEERS[name]
    python = [sys.executable] if packages is None else python_with(*packages)
    cache = directory / "caches" / Path(script).stem
    cache.mkdir(parents=True, exist_ok=True)
    printed = output_of([*python, _FOLDER / script, directory / "train", cache, BATCH_SIZE, max_turn_s, *options])
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    peak_mb[name] = found["peak_mb"]
    return found["rows_per_s"]
