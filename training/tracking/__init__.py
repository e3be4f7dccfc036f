"""MLflow runs that record configuration, data, metrics and the model itself.

MLflow 3 stores runs in SQLite, all in one work directory (`mlflow.db` and `mlartifacts/`), or on a server. A run logs
only to its journal (`rankline.training.tracking.journal`), which is uploaded to the store in the background
(`rankline.training.tracking.upload`), so that a slow store does not delay training. Models are logged as a plain
SavedModel, TorchScript or ONNX file with a loader module of Rankline. No Python objects are pickled, and loading a
model does not run Python code from the artifact.
"""

import json
import logging
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankline.training.tracking.config import FAILURE
from rankline.training.tracking.config import TrackingConfig as TrackingConfig
from rankline.training.tracking.journal import Journal, journal_of
from rankline.workflows.core.errors import in_short
from rankline.workflows.core.optional_packages import installed_versions
from rankline.workflows.core.progress import background_thread
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.targets import output_names

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.models import ModelSignature

_OPEN_S = 5.0  # maximum time that training waits for a server to create the run
_LEAVE_S = 5.0  # maximum time to wait at the end for a server that accepts nothing, or
_LEAVE_SHARE = 0.01  # this fraction of the duration of the run, if longer
_SAMPLE_EVERY_S = 1.0
_LONG_S = 60.0  # in shorter runs, the disk would hide the figures that matter
_GIT_S = 5.0  # Git reads every file of the checkout
_PYFUNC_PACKAGES = ("numpy", "pandas")


class RunLog:
    """The log of the current run. Entries are on disk when a method returns, and in the store a few seconds later.

    Args:
        run_id: id in the store, or the journal's if the store did not respond at the start.
        journal: receives the entries; None for a worker that records nothing.
        is_reopened: whether the run continues one of an earlier process.
    """

    def __init__(self, run_id: str, uri: str, journal: Journal | None = None, *, is_reopened: bool = False) -> None:
        self.run_id = run_id
        self.uri = uri
        self.is_reopened = is_reopened
        self._journal = journal

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log parameters. Parameters that are already logged keep their values."""
        self._append("params", values={name: str(value) for name, value in params.items()})

    def log_dataset(self, split: str, directory: Path, *, digest: str, num_rows: int) -> None:
        """Log the data of a split. MLflow keeps the first 36 characters of `digest`."""
        self._append(
            "dataset",
            split=split,
            name=f"{directory.parent.name}-{split}",
            digest=digest[:36],
            source_type="local",
            source=json.dumps({"uri": directory.absolute().as_uri()}),
            profile=json.dumps({"num_rows": num_rows}),
        )

    def log_metrics(self, metrics: Mapping[str, float], step: int, *, of_model: bool = False) -> None:
        """Log metrics at a step or epoch. With `of_model`, link them to the last logged model and validation data."""
        values = {name: float(value) for name, value in metrics.items()}
        self._append("metrics", values=values, step=step, ms=_now_ms(), of_model=of_model)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        self._append("tags", values=dict(tags))

    def note(self, text: str) -> None:
        """Append a remark to the description of the run, unless it is already there."""
        self._append("remark", text=text)

    def log_artifact(self, path: Path) -> None:
        """Log the current content of a file or directory as an artifact with the same name."""
        if self._journal:
            self._append("artifact", path=self._journal.keep(path))

    def log_model(
        self, path: Path, spec: FeatureSpec, example: "pd.DataFrame", *, loader_module: str, packages: Sequence[str]
    ) -> None:
        """Log a model to MLflow under the name "model", with signature and input example."""
        if not self._journal:
            return
        import mlflow.pyfunc

        folder = self._journal.new_folder()
        versions = installed_versions([*packages, *_PYFUNC_PACKAGES])
        mlflow.pyfunc.save_model(
            folder,
            data_path=str(path),
            loader_module=loader_module,
            signature=_signature(spec),
            input_example=example,
            pip_requirements=[f"{name}=={found}" for name, found in versions.items()],
        )
        self._append("model", path=folder.relative_to(self._journal.directory).as_posix())

    def _append(self, kind: str, **content: Any) -> None:
        if self._journal:
            self._journal.append(kind, **content)


@contextmanager
def tracked_run(config: TrackingConfig, *, resumed_id: str | None = None) -> Iterator[RunLog]:
    """Record the block as a run, or continue the run `resumed_id`.

    An exception in the block marks the run as FAILED, Ctrl-C as KILLED. The function waits a few seconds at the start
    and at the end for a server that does not respond; entries that are not uploaded by then stay in the work directory.
    If the store no longer has the run `resumed_id`, a remark in the new run mentions it.
    """
    with warnings.catch_warnings():
        # MLflow 3.17 warns about one of its own type hints when imported.
        warnings.filterwarnings("ignore", message=".*Any type hint is inferred as AnyType")
        import mlflow.pyfunc  # noqa: F401  (imported before other threads start)

        from rankline.training.tracking.upload import Deliverer

    config.directory.mkdir(parents=True, exist_ok=True)
    with quiet():
        journal = (resumed_id and journal_of(config.journals, resumed_id)) or Journal.new(config.journals)
        begin = time.monotonic()
        _open(journal, config, resumed_id)
        deliverer = Deliverer(journal)
        opened = deliverer.opened(None if config.is_local else _OPEN_S)
        log = RunLog(
            opened.run_id or resumed_id or journal.id,
            config.uri,
            journal,
            is_reopened=opened.is_reopened if opened.run_id else resumed_id is not None,
        )
        status = "FAILED"
        try:
            with _system_metrics(log, opened.start_ms or _now_ms()):
                yield log
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        except Exception as error:
            log.set_tags({FAILURE: in_short(error) or type(error).__name__})
            raise
        finally:
            try:
                journal.append("end", status=status, ms=_now_ms())
            finally:
                took_s = time.monotonic() - begin
                deliverer.finish(None if config.is_local else max(_LEAVE_S, _LEAVE_SHARE * took_s))


def _open(journal: Journal, config: TrackingConfig, resumed_id: str | None) -> None:
    from mlflow.tracking.context.registry import resolve_tags
    from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

    tags = resolve_tags({MLFLOW_PARENT_RUN_ID: config.parent} if config.parent else {})
    journal.append("open", config=config.to_dict(), tags=tags, start_ms=_now_ms(), resumed=resumed_id or "")


@contextmanager
def _system_metrics(log: RunLog, since_ms: int) -> Iterator[None]:
    """Log MLflow's system metrics every second through the journal, once a run takes longer than `_LONG_S`."""
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    kinds: tuple[Any, ...] = (CPUMonitor, DiskMonitor, NetworkMonitor)
    monitors = [kind() for kind in kinds]
    of_gpu: Any = GPUMonitor
    with suppress(Exception):  # the library or a GPU is missing; MLflow ignores this too
        monitors.append(of_gpu())

    def sample(stop: threading.Event) -> None:
        while not stop.wait(_SAMPLE_EVERY_S):
            figures: dict[str, float] = {}
            if _now_ms() - since_ms < 1000 * _LONG_S:
                continue
            for monitor in monitors:
                monitor.collect_metrics()
                figures |= {f"system/{name}": value for name, value in monitor.aggregate_metrics().items()}
                monitor.clear_metrics()
            log.log_metrics(figures, step=(_now_ms() - since_ms) // 1000)

    with background_thread(sample, "system metrics"):
        yield


def code_version() -> str:
    """Return Rankline's version. In a Git checkout, include the commit, with "-dirty" appended if files changed."""
    source = Path(__file__).resolve()
    try:
        _git("ls-files", "--error-unmatch", source.name, cwd=source.parent)  # fails in another project's repository
        commit = f", commit {_git('describe', '--always', '--dirty', '--exclude', '*', cwd=source.parent)}"
    except (OSError, subprocess.SubprocessError):  # no Git, or no checkout
        commit = ""
    return f"rankline {rankline_version()}{commit}"


def rankline_version() -> str:
    """Return the installed version, or "unknown" if Rankline runs from source without being installed."""
    return installed_versions(["rankline"]).get("rankline", "unknown")


def _git(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, check=True, timeout=_GIT_S)
    return done.stdout.strip()


def _signature(spec: FeatureSpec) -> "ModelSignature":
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec
    from mlflow.types.schema import Array, DataType

    columns: list[ColSpec | TensorSpec] = []
    for feature in (*spec.categorical, *spec.continuous):
        kind = DataType.float if feature.cardinality is None else DataType.long
        columns.append(ColSpec(Array(kind) if feature.is_list else kind, feature.name))
    outputs: list[ColSpec | TensorSpec] = []
    for head, name in zip(spec.heads, output_names(spec.heads), strict=True):
        outputs.append(ColSpec(DataType.float if head.width == 1 else Array(DataType.float), name))
    return ModelSignature(inputs=Schema(columns), outputs=Schema(outputs))


@contextmanager
def quiet() -> Iterator[None]:
    """Make MLflow and its libraries log only warnings in the block, so that they do not overwrite a progress bar."""
    wanted = {"mlflow": logging.WARNING, "alembic": logging.WARNING, "urllib3": logging.ERROR}  # warns of retries
    loggers = [logging.getLogger(name) for name in wanted]
    levels = [logger.level for logger in loggers]
    for logger, level in zip(loggers, wanted.values(), strict=True):
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
