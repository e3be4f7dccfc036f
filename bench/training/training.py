"""training: what a training step costs with our loader, without any, and in the seed document's own path.

See `bench.training.movielens`, `bench.training.criteo` and `bench.training.amazon`. Sides run in turns, several times;
figures are medians over the repeats. The rows that a side learns before its turn begins do not count.
"""

from collections.abc import Callable, Mapping

from bench.harness.report import Report
from bench.training.amazon import SIM, run_amazon
from bench.training.criteo import CRITEO, run_criteo
from bench.training.movielens import MOVIELENS, run_movielens
from rankline.workflows.core.errors import ConfigError


def run(repeats: int, *, recipe: str = MOVIELENS) -> Report:
    runs: Mapping[str, Callable[[int], Report]] = {MOVIELENS: run_movielens, CRITEO: run_criteo, SIM: run_amazon}
    if recipe not in runs:
        raise ConfigError(f"no seed document trains {recipe!r}. Available: {', '.join(runs)}.")
    return runs[recipe](repeats)
