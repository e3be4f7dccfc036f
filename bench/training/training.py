"""training: cost of a training step with Rankline's loader, without a loader, and in the seed document's path.

See `bench.training.movielens`, `bench.training.criteo` and `bench.training.amazon`. Sides run in turns; metrics are
medians over the repeats. Warm-up before a turn is excluded.
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
