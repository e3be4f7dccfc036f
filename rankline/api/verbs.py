"""The `rankline` commands as Python functions of the same names, for notebooks and scripts.

Rows are pandas DataFrames, Arrow tables or files. Functions and commands store their artifacts in the same places, so
they can be mixed.
"""

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, cast

import pyarrow as pa

from rankline.api.data_source import SourceConfig
from rankline.recipes import Recipe, recipe_named
from rankline.recipes.overrides import Overrides, names_of
from rankline.recipes.workspace import REPOSITORY, WORK_DIR, Workspace, exported_workspace
from rankline.registry.promotion_gate import Bounds
from rankline.scoring.sample import check_free, check_name, publish_sample, read_sample
from rankline.serving.export.config import ExportConfig
from rankline.terminal.commands import command
from rankline.terminal.console import CONSOLE, Stages, note
from rankline.terminal.silence import quiet_libraries
from rankline.training.config.train import SessionConfig
from rankline.workflows.core.errors import ArtifactError, ConfigError, DataError
from rankline.workflows.core.formatting import did_you_mean
from rankline.workflows.preprocess.config import DaskConfig

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from rankline.serving.client import Client, ModelSchema
    from rankline.serving.engines.merlin_operators import Ensemble
    from rankline.serving.repository.ensemble import ExportedEnsemble
    from rankline.serving.server.embedded import Endpoints
    from rankline.workflows.nvt.compat import nvt
    from rankline.workflows.preprocess.prepared_data import PreparedData
    from rankline.workflows.schema.model_artifact import TrainedModel

Rows: TypeAlias = "pd.DataFrame | pa.Table"
AnyPath: TypeAlias = str | Path
_INTERRUPT_INTERVAL_S = 0.2
_Rows = TypeVar("_Rows")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _quietly(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorate a function to silence libraries while it runs, leaving the caller's warning filters unchanged."""

    @wraps(function)
    def call(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        with warnings.catch_warnings():
            quiet_libraries()
            return function(*arguments, **options)

    return call


class Dataset:
    """A table with one or more columns to predict, and a recipe with settings inferred from the rows.

    Args:
        rows: a DataFrame, an Arrow table, or one or more files (CSV, Parquet, JSON lines).
        label: column or columns to predict; guessed if not given.
        name: name of the recipe, its artifacts and its ensemble.
        work_dir: directory for the recipe file, and for a copy of in-memory rows.

    Attributes:
        recipe: the recipe that `prepare`, `train` and `export` use.
        file: path of the recipe file, `rankline.yaml`, which states the reason for each setting and can be edited.
        columns: one row per column: its type, its role, and why they were guessed.

    Raises:
        DataError: there are no rows, or the label cannot be learned.
        ConfigError: the name is invalid or belongs to another recipe, or the format of a file is unknown.
    """

    def __init__(
        self,
        rows: "Rows | AnyPath | Sequence[AnyPath]",
        *,
        label: str | Sequence[str] = (),
        name: str = "table",
        work_dir: AnyPath = WORK_DIR,
    ) -> None:
        import pandas as pd

        from rankline.recipes.first_recipe import first_recipe

        check_name(name)
        directory = Path(work_dir).absolute() / name
        files = _files_of(rows, directory)
        labels = [label] if isinstance(label, str) else list(label)
        made = first_recipe(files, labels, directory, name=name)
        self.file = directory / "rankline.yaml"
        made.write(self.file)
        self.recipe = recipe_named(str(self.file))
        self.columns = pd.DataFrame(made.columns(), columns=["column", "type", "role", "why"])

    def __repr__(self) -> str:
        labels = list(self.columns["column"][self.columns["role"] == "label"])
        return f"Dataset(name={self.recipe.name!r}, label={labels}, file={str(self.file)!r})"


AnyRecipe: TypeAlias = Recipe | Dataset | str | Path


def load_recipe(name: AnyPath) -> Recipe:
    """Load a recipe by name, such as `movielens`, or from a file, such as `rankline.yaml`.

    Raises:
        ConfigError: there is no such recipe, or its file is invalid.
    """
    return recipe_named(str(name))


@_quietly
def prepare(
    recipe: AnyRecipe, *, work_dir: AnyPath = WORK_DIR, progress: bool = True, **choices: Any
) -> "PreparedData":
    """Turn raw rows into encoded Parquet, a fitted NVTabular workflow and the feature spec, like `rankline prepare`.

    Args:
        recipe: a `Dataset`, a `Recipe`, or the name of a recipe.
        work_dir: directory of all artifacts.
        progress: show the stages.
        choices: options of the command by name, such as `data_dir="ml-1m"`, `split="time"`.

    Raises:
        RanklineError: for the same reasons as the command.
    """
    from rankline.api import pipeline

    chosen, workspace = _chosen(recipe, work_dir)
    overrides = _overrides(choices, SourceConfig, DaskConfig, chosen.prepare, chosen.encoding)
    with _stages(["source", "prepare"], progress) as stages:
        source, dask = overrides.apply(SourceConfig()), overrides.apply(DaskConfig())
        return pipeline.prepare(chosen.with_overrides(overrides), source, workspace, stages, dask)[0]


@_quietly
def train(recipe: AnyRecipe, *, work_dir: AnyPath = WORK_DIR, progress: bool = True, **choices: Any) -> "TrainedModel":
    """Train a model on the prepared data and track the run in MLflow, like `rankline train`.

    Args:
        recipe, work_dir, progress: see `prepare`.
        choices: options of the command by name, such as `epochs=5`, `model="dlrm"`, `checkpoint_every=500`.

    Raises:
        RanklineError: for the same reasons as the command.
    """
    from rankline.api import pipeline
    from rankline.training.models import model_named
    from rankline.workflows.preprocess.prepared_data import PreparedData

    chosen, workspace = _chosen(recipe, work_dir)
    if "model" in choices:
        model = choices.pop("model")
        chosen = chosen.with_overrides(Overrides({"model": model_named(model)() if isinstance(model, str) else model}))
    overrides = _overrides(choices, SessionConfig, chosen.train)
    with _stages(["train"], progress) as stages:
        prepared = PreparedData.load(workspace.prepared, chosen.dataset)
        session = overrides.apply(SessionConfig())
        return pipeline.train(chosen.with_overrides(overrides), prepared, workspace, stages, session=session)[0]


@_quietly
def export(
    recipe: AnyRecipe | None = None,
    *,
    model: "AnyPath | Sequence[AnyPath] | Ensemble | None" = None,
    sample: "Rows | AnyPath | None" = None,
    name: str | None = None,
    workflow: "AnyPath | nvt.Workflow | None" = None,
    rename: Mapping[str, str] | None = None,
    missing: float | None = None,
    work_dir: AnyPath = WORK_DIR,
    repository: AnyPath = REPOSITORY,
    promote: bool = True,
    bounds: Bounds | None = None,
    progress: bool = True,
    **choices: Any,
) -> "ExportedEnsemble":
    """Export the workflow and the model as a new version of a Triton ensemble, like `rankline export`.

    Args:
        recipe: the recipe that was prepared and trained here; None with `model`.
        model: a model trained elsewhere: a SavedModel, .keras, TorchScript, ONNX, LightGBM or XGBoost file; several
            TensorFlow models, which are combined; or a merlin-systems graph, such as
            `TransformWorkflow(…) >> PredictTensorflow(…)`.
        sample: raw rows for the parity check, with `model`.
        name: name of the ensemble, with `model`.
        workflow: a fitted NVTabular workflow or the directory of a saved one, with `model`.
        rename: mapping from workflow column to model input.
        missing: value that an XGBoost model treats as missing, in addition to NaN; its file does not record it.
        work_dir: directory of all artifacts.
        repository: directory of the exported ensembles.
        promote: make the new version active; the first version always becomes active.
        bounds: make it active only if it meets these bounds in comparison with the active version; only with `recipe`.
        progress: show the stages.
        choices: options of the command by name, such as `engine="onnx"`, `fused=True`.

    Raises:
        RanklineError: for the same reasons as the command.
    """
    if recipe is not None and model is not None:
        raise ConfigError("a recipe and a model were both passed. Pass only one of them.")
    if recipe is None:
        if model is None:
            raise ConfigError(
                "neither a recipe nor a model was passed. Pass a recipe, such as movielens, or a model with a sample "
                "and a name."
            )
        if bounds:
            raise ConfigError(
                "bounds (--if-better) require a recipe because they are checked on its labeled validation rows."
            )
        if sample is None or name is None:
            raise ConfigError(
                "exporting a model also requires a sample (raw rows for the parity check) and a name for the ensemble."
            )
        check_name(name)
        rows = read_sample(Path(sample)) if isinstance(sample, str | Path) else _table(sample)
        workspace = Workspace(recipe=name, root=Path(work_dir), repository=Path(repository))
        config = _overrides(choices, ExportConfig).apply(ExportConfig())
        with _stages(["export"], progress) as stages, TemporaryDirectory(prefix="rankline-graph-") as directory:
            paths, fitted = _models_of(model, workflow, rows, Path(directory))
            return _export_model(
                paths, rows, workspace, config, stages, promote, workflow=fitted, renames=rename or {}, missing=missing
            )
    given = {"sample": sample, "name": name, "workflow": workflow, "rename": rename, "missing": missing}
    if extra := [option for option, value in given.items() if value is not None]:
        raise ConfigError(f"{', '.join(extra)} can be used only with a model that was trained elsewhere.")
    from rankline.api import pipeline
    from rankline.workflows.preprocess.prepared_data import PreparedData

    chosen, workspace = _chosen(recipe, work_dir, repository)
    config = _overrides(choices, chosen.serving).apply(chosen.serving)
    with _stages(["export", "compare"] if bounds else ["export"], progress) as stages:
        prepared = PreparedData.load(workspace.prepared, chosen.dataset)
        return pipeline.export(chosen, config, prepared, workspace, stages, promote=promote, bounds=bounds)


def _export_model(
    paths: Sequence[Path],
    rows: pa.Table,
    workspace: Workspace,
    config: ExportConfig,
    stages: Stages,
    promote: bool,
    **parts: Any,
) -> "ExportedEnsemble":
    """Export a model that was trained elsewhere. `parts` are arguments of `export_foreign`."""
    from rankline.api.pipeline import describe_export
    from rankline.registry.activation import make_active, registry_uri
    from rankline.serving.importers.export import export_foreign
    from rankline.serving.repository.ensemble import ExportedEnsemble

    check_free(workspace.ensemble)
    registry = registry_uri(workspace.ensemble)
    try:
        active = ExportedEnsemble.load(workspace.ensemble)
    except ArtifactError:  # missing or damaged: the export replaces it
        active = None
    with stages.stage("export") as report:
        ensemble = export_foreign(
            paths,
            rows,
            workspace.ensemble,
            config,
            name=workspace.recipe,
            promote=promote and registry is None,
            progress=report,
            **parts,
        )
        publish_sample(rows, workspace.sample)
        report.update(1, 1, describe_export(ensemble))
    for sentence in ensemble.manifest.details["assumed"]:
        note(f"Note: {sentence}")
    if active is not None and (before := active.output_names) != (now := ensemble.output_names):
        note(
            f"Warning: the outputs are named {', '.join(now)}, but those of the active version {active.version} "
            f"{', '.join(before)}. Change clients that read them by name, or name the model's last layer as before."
        )
    if registry and promote:
        make_active(ensemble)
    return ensemble


def _models_of(
    model: Any, workflow: Any, rows: pa.Table, directory: Path
) -> "tuple[list[Path], Path | nvt.Workflow | None]":
    """Return the model paths and the workflow, extracting both if `model` is a merlin-systems graph."""
    if isinstance(model, str | Path):
        model = [model]
    if isinstance(model, Sequence):
        return [Path(path) for path in model], Path(workflow) if isinstance(workflow, str | Path) else workflow
    if not (hasattr(model, "graph") or hasattr(model, "parents_with_dependencies")):
        raise ConfigError(
            f"the model is a {type(model).__name__} object, expected a path or a merlin-systems graph. Save the model, "
            'such as a Keras model with model.save("model.keras"), and pass the path.'
        )
    if workflow is not None:
        raise ConfigError("a merlin-systems graph already contains its workflow. Omit the workflow argument.")
    from rankline.serving.importers.merlin_graph import parts_of

    parts = parts_of(model, rows, directory)
    return list(parts.models), parts.workflow


@contextmanager
def serve(
    ensemble: "ExportedEnsemble | str",
    *,
    port: int = 0,
    http_port: int | None = None,
    watch: bool = True,
    log_file: AnyPath | None = None,
    repository: AnyPath = REPOSITORY,
) -> "Iterator[Endpoints]":
    """Serve an ensemble with Triton on the loopback interface until the `with` block ends, like `rankline serve`.

    Args:
        ensemble: the return value of `export` if that version is active, or the name of an ensemble.
        port: gRPC port; metrics use the next port that HTTP does not use. 0 picks free ports.
        http_port: also open HTTP on this port; 0 picks a free port. A large JSON request crashes the server, which is
            then restarted.
        watch: switch to each version that `export` makes active.
        log_file: file for the server's log.
        repository: directory of the exported ensembles, used if `ensemble` is a name.

    Yields:
        The server's addresses; pass `grpc` to `Client`.

    Raises:
        ServerError: the server does not start.
        ArtifactError, ConfigError: there is no ensemble of that name, or its active version is another one.
    """
    from rankline.serving.repository.ensemble import active_version
    from rankline.serving.server.embedded import EmbeddedServer
    from rankline.serving.server.supervisor import Supervisor, config_of

    ensemble = _ensemble(ensemble, repository)
    if (active := active_version(ensemble.path, ensemble.name)) != ensemble.version:
        promote = command("promote", ensemble.name, "--to", str(ensemble.version), repository=ensemble.path.parent)
        raise ConfigError(
            f"version {ensemble.version} of {ensemble.name!r} is not active; version {active} is. Activate it "
            f"({promote}), or pass {ensemble.name!r} to serve the active version."
        )
    log_path = None if log_file is None else Path(log_file)
    with EmbeddedServer(config_of(ensemble, port=port, http_port=http_port, log_path=log_path)) as server:
        stop = threading.Event()
        supervisor = Supervisor(server, ensemble, follow_versions=watch, report=lambda _: None)
        thread = threading.Thread(target=supervisor.run, args=(stop,), name="rankline-serve", daemon=True)
        thread.start()
        try:
            yield server.endpoints
        finally:
            stop.set()
            while thread.is_alive():
                server.interrupt()  # in case it is starting or loading a version
                thread.join(_INTERRUPT_INTERVAL_S)


def predict(scorer: "Client | ExportedEnsemble | str", rows: _Rows, *, repository: AnyPath = REPOSITORY) -> _Rows:
    """Score rows on a server or in this process.

    Args:
        scorer: a client of a server, an ensemble, or the name of an ensemble. An ensemble is loaded for the duration of
            the call.
        rows: rows of any type that `Client.predict` takes, with the columns of the model; other columns are kept.
        repository: directory of the exported ensembles, used if `scorer` is a name.

    Returns:
        The rows, in their original type, with a column `score`, or `score_OUTPUT` for each named output and
        `score_OUTPUT_CLASS` for each class.

    Raises:
        DataError: a column is missing, or has the name of a score.
        RequestError: a value does not fit the model's column.
        ArtifactError, ConfigError: there is no ensemble of that name.
    """
    from rankline.scoring.read_rows import select
    from rankline.serving.client import Client

    if not isinstance(scorer, Client):
        return _predict_here(_ensemble(scorer, repository), rows)
    schema = scorer.schema
    table = _table_of(rows, schema)
    if taken := [name for name in schema.score_names if name in table.column_names]:
        raise DataError(
            f"the rows already contain the columns {taken}, which are reserved for the scores. Rename them."
        )
    scores = schema.score_columns(scorer.predict(select(table, schema)))
    return cast(_Rows, _beside(rows, scores, is_row=table.num_rows == 1))


def _table_of(rows: Any, schema: "ModelSchema") -> pa.Table:
    from rankline.serving.client.request_builder import columns_of

    if isinstance(rows, pa.Table):  # may repeat the names of columns that the model does not take
        return rows
    if not (isinstance(rows, pa.RecordBatch | Mapping | list | tuple) or hasattr(rows, "to_arrow")):
        return _table(rows)
    try:
        return pa.table(dict(columns_of(rows, schema)))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"the rows cannot be read: {error}. Use a single type per column.") from None


def _beside(rows: Any, scores: "Mapping[str, NDArray[Any]]", *, is_row: bool) -> Any:
    if isinstance(rows, pa.Table | pa.RecordBatch):
        for name, column in scores.items():
            rows = rows.append_column(name, pa.array(column if column.ndim == 1 else list(column)))
        return rows
    if isinstance(rows, list | tuple):
        return type(rows)({**row, **{n: c[i].tolist() for n, c in scores.items()}} for i, row in enumerate(rows))
    if isinstance(rows, Mapping):
        is_row = is_row and any(isinstance(value, str) or not hasattr(value, "__iter__") for value in rows.values())
        return {**rows, **{name: column[0].tolist() if is_row else column for name, column in scores.items()}}
    if hasattr(rows, "with_columns"):  # polars
        return rows.with_columns(**scores)
    return rows.assign(**{name: column if column.ndim == 1 else list(column) for name, column in scores.items()})


@_quietly
def _predict_here(ensemble: "ExportedEnsemble", rows: _Rows) -> _Rows:
    from rankline.serving.server.in_process import open_ensemble

    with open_ensemble(ensemble) as client:
        return predict(client, rows)


def _ensemble(ensemble: Any, repository: AnyPath) -> "ExportedEnsemble":
    """Return the ensemble, loading it by name if `ensemble` is a string."""
    from rankline.serving.repository.ensemble import ExportedEnsemble

    if isinstance(ensemble, str):
        return ExportedEnsemble.load(exported_workspace(ensemble, repository=Path(repository)).ensemble)
    if not isinstance(ensemble, ExportedEnsemble):
        kind = type(ensemble).__name__
        raise ConfigError(
            f"ensemble has type {kind}, expected the result of rankline.export or the name of an ensemble."
        )
    return ensemble


def _table(rows: Any) -> pa.Table:
    import pandas as pd

    from rankline.serving.client.schema import check_distinct

    if not isinstance(rows, pd.DataFrame | pa.Table):
        raise DataError(f"rows has type {type(rows).__name__}, expected a pandas DataFrame or an Arrow table.")
    check_distinct(map(str, rows.column_names if isinstance(rows, pa.Table) else rows.columns), "the rows")
    if isinstance(rows, pa.Table):
        return rows
    try:
        return pa.Table.from_pandas(rows, preserve_index=False)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"the rows cannot be read: {error}. Use a single type per column.") from None


def _files_of(rows: Any, directory: Path) -> list[str]:
    """Return the paths of the input files, writing in-memory rows to `rows.parquet` in `directory` first."""
    import pyarrow.parquet as pq

    from rankline.workflows.storage.artifacts import whole_file

    if isinstance(rows, str | Path):
        return [str(Path(rows).absolute())]
    if isinstance(rows, list | tuple):
        if wrong := [part for part in rows if not isinstance(part, str | Path)]:
            raise DataError(f"the list of files contains a {type(wrong[0]).__name__}, expected only file names.")
        return [str(Path(name).absolute()) for name in rows]
    table = _table(rows)
    with whole_file(directory / "rows.parquet") as path:
        pq.write_table(table, path)
    return [str(directory / "rows.parquet")]


def _chosen(recipe: AnyRecipe, work_dir: AnyPath, repository: AnyPath = REPOSITORY) -> tuple[Recipe, Workspace]:
    if isinstance(recipe, Dataset):
        recipe = recipe.recipe
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    return chosen, Workspace(recipe=chosen.name, root=Path(work_dir), repository=Path(repository))


def _overrides(choices: Mapping[str, Any], *configs: Any) -> Overrides:
    known = names_of(*configs)
    if unknown := sorted(set(choices) - set(known)):
        raise ConfigError(f"unknown setting {unknown}. Available: {', '.join(known)}.{did_you_mean(unknown, known)}")
    return Overrides({name: Path(v) if name == "data_dir" and v is not None else v for name, v in choices.items()})


@contextmanager
def _stages(names: list[str], progress: bool) -> Iterator[Stages]:
    from rich.console import Console

    with Stages(names, CONSOLE if progress else Console(quiet=True)) as stages:
        yield stages
