"""Sources of raw data: a directory, a download, or the dataset's generator."""

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.progress import SILENT, Progress

if TYPE_CHECKING:
    from rankline.workflows.preprocess.dataset import Dataset


OF_GENERATED = ("rows", "data_seed", "cardinality_scale")
"""Fields of `SourceConfig` that affect only generated rows."""


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """The source of the raw rows: a directory, a download or a generator.

    Attributes:
        data_dir: directory of raw files, in any layout in which the dataset is distributed.
        download: name of an archive to download, for datasets that have one: MovieLens has ml-latest-small, ml-1m and
            ml-25m; Criteo and Amazon have none and need --data-dir.
        rows: number of rows to generate when neither a directory nor an archive is given.
        data_seed: random seed of the generated rows.
        cardinality_scale: factor for the number of distinct ids in generated rows.
    """

    data_dir: Path | None = None
    download: str | None = None
    rows: int = 500_000
    data_seed: int = 1
    cardinality_scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.cardinality_scale < math.inf:
            raise ConfigError(
                f"cardinality_scale is {self.cardinality_scale}, expected a finite number greater than 0."
            )
        if self.data_dir is not None and self.download is not None:
            raise ConfigError("--data-dir and --download cannot be combined. Pass only one of them.")

    @property
    def of_generated(self) -> tuple[str, ...]:
        """Command-line flags of the row-generation settings that differ from their defaults."""
        changed = [name for name in OF_GENERATED if getattr(self, name) != getattr(SourceConfig, name)]
        return tuple("--" + name.replace("_", "-") for name in changed)


@dataclass(frozen=True, kw_only=True)
class Source:
    directory: Path
    description: str
    best_auc: float | None = None


def obtain(dataset: "Dataset", config: SourceConfig, cache: Path, *, progress: Progress = SILENT) -> Source:
    """Find, download or generate the raw files, reusing files already in `cache`."""
    if (config.data_dir or config.download or dataset.generate is None) and (given := config.of_generated):
        raise ConfigError(f"these options can be used only with generated rows: {', '.join(given)}. Remove them.")
    if config.data_dir is not None:
        return Source(directory=config.data_dir, description=str(config.data_dir))
    if config.download is not None:
        from rankline.workflows.storage.download import download

        if config.download not in dataset.archives:
            there_are = ", ".join(dataset.archives) or f"none; pass --data-dir with the raw files of {dataset.name}"
            raise ConfigError(f"{dataset.name} has no archive {config.download!r}. Available: {there_are}.")
        directory = download(dataset.archives[config.download], cache, progress=progress)
        return Source(directory=directory, description=config.download)
    if dataset.directory is not None:
        return Source(directory=dataset.directory, description=dataset.name)
    if dataset.generate is None:
        archives = f", or --download {' or '.join(dataset.archives)}" if dataset.archives else ""
        raise ConfigError(
            f"Rankline cannot generate rows for {dataset.name}. Pass --data-dir with the raw files{archives}."
        )
    directory = cache / f"generated-{dataset.name}-{config.rows}-{config.data_seed}-{config.cardinality_scale:g}"
    if not directory.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".generate.", dir=cache) as scratch:
            staging = Path(scratch) / directory.name
            dataset.generate(
                staging,
                num_rows=config.rows,
                seed=config.data_seed,
                cardinality_scale=config.cardinality_scale,
                progress=progress,
            )
            with suppress(OSError):  # another run already generated the same rows; if not, reading them fails below
                staging.rename(directory)
    from rankline.workflows.data.planted_model import best_auc

    return Source(directory=directory, description=f"{config.rows:,} generated rows", best_auc=best_auc(directory))
