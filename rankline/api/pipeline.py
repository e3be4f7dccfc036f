"""The pipeline behind the commands: source → prepare → train → export → serve → bench, one function per stage.

Heavy libraries are imported inside the stages, to keep `rankline --help` fast.
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankline.api.data_source import SourceConfig, obtain
from rankline.api.work_lock import working_in
from rankline.recipes import Recipe
from rankline.recipes.workspace import Workspace
from rankline.registry.activation import make_active, registry_uri
from rankline.registry.promotion_gate import Bounds, check_metric, try_out
from rankline.runs.store import check_store, uri_of
from rankline.scoring.backends import Server, server_for
from rankline.serving.export.config import ExportConfig
from rankline.serving.loadtest.config import LoadConfig
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.serving.repository.ensemble import refuse_other_project
from rankline.terminal.commands import command
from rankline.terminal.console import Display, Stages, is_stdout, note
from rankline.training.config.train import SessionConfig
from rankline.training.distributed.communicator import SOLO, Communicator
from rankline.training.distributed.config import WorkersConfig
from rankline.workflows.core.errors import PINNED, ArtifactError, ConfigError, ServingError
from rankline.workflows.core.formatting import listed, quality_figure
from rankline.workflows.core.optional_packages import require
from rankline.workflows.core.progress import SILENT, Part, Progress
from rankline.workflows.preprocess.config import DaskConfig
from rankline.workflows.schema.targets import Head, output_names
from rankline.workflows.schema.tensors import concat_outputs, relative_error
from rankline.workflows.storage.artifacts import output_file

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from rankline.report.analysis import Analysis
    from rankline.report.run_page import RunReport
    from rankline.serving.client import Client
    from rankline.serving.repository.ensemble import ExportedEnsemble
    from rankline.training.run.checkpoint import Generation
    from rankline.training.run.observers import Observer
    from rankline.training.tracking import RunLog
    from rankline.workflows.preprocess.prepared_data import PreparedData
    from rankline.workflows.schema.model_artifact import TrainedModel

STAGES = ["source", "prepare", "train", "export", "serve", "bench"]
# For `run`, which gives only a first impression of performance.
_SHORT = LoadConfig(warmup_s=0.25, window_s=0.5, min_duration_s=1.5, time_limit_s=3.0, min_requests=100)
# Served and offline scores differ only by float32 rounding, which can swap near ties.
_TOLERANCE = 1e-4
_NUM_ALONE = 32  # rows that are also scored alone, to see how much scores depend on the batch
_TIMES_ROUNDING, _MAX_ROUNDING = 4.0, 1e-3  # tolerance under load: this multiple of that rounding, at most this


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Quality of the model on the validation rows.

    Attributes:
        per_seed: metrics by training seed; the model of the first seed is exported.
        best_auc: best AUC that any model can reach, for generated data.
        served: the objective, computed from the server's scores of the same rows.
    """

    per_seed: Mapping[int, Mapping[str, float]]
    best_auc: float | None
    served: float
    heads: tuple[Head, ...]

    def mean(self, metric: str) -> float:
        return statistics.fmean(metrics[metric] for metrics in self.per_seed.values())

    def std(self, metric: str) -> float:
        """Return the sample standard deviation over the seeds, or 0 for a single seed."""
        values = [metrics[metric] for metrics in self.per_seed.values()]
        return statistics.stdev(values) if len(values) > 1 else 0.0

    def to_dict(self) -> dict[str, Any]:
        from rankline.training.evaluation import objective_of

        names = [name for name in next(iter(self.per_seed.values())) if name.startswith("valid_")]
        return (
            {name: self.mean(name) for name in names}
            | {f"{name}_std": self.std(name) for name in names}
            | {"best_auc": self.best_auc, f"served_{objective_of(self.heads).name}": self.served}
            | {"seeds": {str(seed): dict(values) for seed, values in self.per_seed.items()}}
        )


@dataclass(frozen=True, kw_only=True)
class RunResult:
    recipe: Recipe
    workspace: Workspace
    source: str
    quality: Quality
    report: BenchmarkReport
    analysis: "Analysis"
    prepared: "PreparedData"
    trained: "TrainedModel"
    ensemble: "ExportedEnsemble"

    def report_of(self, steps: Sequence[tuple[str, str]]) -> "RunReport":
        from rankline.report.run_page import RunReport

        return RunReport(
            ensemble=self.ensemble,
            bench=self.report,
            prepared=self.prepared,
            trained=self.trained,
            analysis=self.analysis,
            steps=steps,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.name,
            "source": self.source,
            "rows": dict(self.prepared.manifest.details["rows"]),
            **self.report.to_dict(),
            "quality": self.quality.to_dict(),  # over all seeds; the report covers only the measured model
            "artifacts": {
                "prepared": str(self.prepared.path),
                "model": str(self.trained.path),
                "ensemble": str(self.ensemble.path),
                "version": self.ensemble.version,
                "run_id": self.trained.run_id,
                "tracking_uri": self.trained.tracking_uri,
            },
        }


def prepare(
    recipe: Recipe, source: SourceConfig, workspace: Workspace, stages: Stages, dask: DaskConfig | None = None
) -> tuple["PreparedData", str]:
    require("nvtabular", feature="preparing data", extra=PINNED)  # fail before downloading anything
    dataset = recipe.dataset
    with ExitStack() as stack:
        stack.enter_context(working_in(workspace.directory))
        about: dict[str, Any] = {}
        with stages.stage("source") as progress:
            if dask is not None and dask.dask:
                from rankline.workflows.preprocess.dask_cluster import open_pool

                progress.update(0, 1, f"waiting for Dask, {dask.dask}")
                about["pool"] = stack.enter_context(open_pool(dask, workspace.root))
            found = obtain(dataset, source, workspace.raw, progress=progress)
            raw = dataset.raw_data(found.directory)
            num_rows = len(raw.rows) + sum(raw.dropped.values())
            items = "" if raw.catalog is None else f", {len(raw.catalog):,} items"
            progress.update(1, 1, f"{found.description}: {num_rows:,} rows{items}")
        with stages.stage("prepare") as progress:
            about |= {"source": found.description, "best_auc": found.best_auc, "progress": progress}
            from rankline.workflows.preprocess.prepare import prepare as prepare_data

            prepared = prepare_data(dataset, raw, workspace.prepared, recipe.prepare, recipe.encoding, **about)
            progress.update(1, 1, _describe_rows(prepared))
    return prepared, found.description


def train(
    recipe: Recipe,
    prepared: "PreparedData",
    workspace: Workspace,
    stages: Display,
    num_seeds: int = 1,
    session: SessionConfig | None = None,
    *,
    workers: WorkersConfig | None = None,
    world: Communicator = SOLO,
    generation: "Generation | None" = None,
    observers: "Callable[[RunLog], Iterable[Observer]]" = lambda _: (),
) -> tuple["TrainedModel", dict[int, Mapping[str, float]]]:
    """Train `num_seeds` models with consecutive seeds, starting at the recipe's seed.

    Returns:
        The model of the first seed, which is the one to export, and the metrics of each seed.
    """
    if session and session.resume and num_seeds > 1:
        raise ConfigError(
            f"--resume continues a single run and cannot be combined with --seeds {num_seeds}. Pass --seed to "
            "choose the run."
        )
    if workers and workers.is_elastic and num_seeds > 1:
        raise ConfigError(
            f"an elastic run trains only one model and cannot be combined with --seeds {num_seeds}. Start a separate "
            "run for each --seed."
        )
    recipe.train.model.framework.require(feature=f"training {recipe.train.model.name!r}")
    models = []
    first = recipe.train.seed
    # Of several workers, the first writes for all of them.
    lock = working_in(workspace.directory) if world.rank == 0 else nullcontext()
    with lock, stages.stage("train") as progress:
        progress.update(0, 1, "loading libraries")
        from rankline.runs.store import server
        from rankline.training.run.train import train as train_model
        from rankline.training.tracking import TrackingConfig

        for number in range(num_seeds):
            seed = first + number
            seeded = replace(recipe, train=replace(recipe.train, seed=seed))
            models.append(
                train_model(
                    prepared,
                    workspace.model if number == 0 else workspace.model_of_seed(seed),
                    seeded.train,
                    session=session,
                    tracking=TrackingConfig(
                        directory=workspace.root,
                        experiment=recipe.name,
                        run_name=seeded.run_name,
                        server=server(),
                    ),
                    progress=Part(progress, number, num_seeds, partial(_of_seed, number, num_seeds)),
                    observers=observers,
                    world=world,
                    workers=workers,
                    generation=generation,
                )
            )
        metrics = {first + number: model.metrics for number, model in enumerate(models)}
        progress.update(1, 1, _describe_quality(prepared.spec.heads, metrics))
    if world.rank == 0:  # only rank 0 has the journal; other workers would read it while it is being delivered
        _say_what_is_left(workspace.root, {model.run_id for model in models})
    return models[0], metrics


def _say_what_is_left(work_dir: Path, run_ids: set[str]) -> None:
    from rankline.training.tracking.config import journals_of
    from rankline.training.tracking.journal import left_in, undelivered

    for left in left_in(journals_of(work_dir)):
        if run_ids & {left.directory.name, left.delivered.run_id}:
            note(f"Warning: {undelivered(left.directory, left.delivered.failure)}")


def export(
    recipe: Recipe,
    config: ExportConfig,
    prepared: "PreparedData",
    workspace: Workspace,
    stages: Stages,
    *,
    trained: "TrainedModel | None" = None,
    promote: bool = True,
    bounds: Bounds | None = None,
) -> "ExportedEnsemble":
    """Export the workflow and the model as a single ensemble. `trained` is the workspace's model, if already loaded.

    With `bounds`, the new version becomes active only if it meets them in comparison with the active version. The
    first version always becomes active.
    """
    if bounds:
        check_metric(bounds.metric, prepared)
    if promote:
        refuse_other_project(workspace.ensemble, recipe.name, workspace.model, prepared.inputs)
    registry = registry_uri(workspace.ensemble)
    from rankline.serving.engines import engine_for
    from rankline.workflows.schema.model_artifact import TrainedModel

    with stages.stage("export") as progress:
        trained = trained or TrainedModel.load(workspace.model)
        engine_for(trained.format).require(feature=f"exporting {trained.path}")
        from rankline.serving.export.exporter import export_ensemble
        from rankline.serving.repository.ensemble import ExportedEnsemble

        ensemble = export_ensemble(
            prepared,
            trained,
            workspace.ensemble,
            config,
            name=recipe.name,
            promote=promote and bounds is None and registry is None,
            progress=progress,
        )
        progress.update(1, 1, describe_export(ensemble))
    _record(ensemble, workspace)
    if registry and promote and bounds is None:
        make_active(ensemble)
    if bounds and not ensemble.is_active:
        with stages.stage("compare") as progress:
            champion = ExportedEnsemble.load(workspace.ensemble)
            decision = try_out(champion, ensemble, prepared, bounds, log_path=workspace.log, progress=progress)
            if not decision.refusals and promote:
                make_active(ensemble, in_place_of=champion.version)
            progress.update(1, 1, decision.words)
    return ensemble


def _record(ensemble: "ExportedEnsemble", workspace: Workspace) -> None:
    """Record the export on the run that trained the model, or warn if the tracking store does not respond."""
    from rankline.runs.store import catch_up, record_export

    catch_up(workspace.root)
    try:
        record_export(ensemble, workspace.root)
    except ArtifactError as error:
        note(f"Warning: {error}")


def describe_export(ensemble: "ExportedEnsemble") -> str:
    num_rows = ensemble.manifest.details["parity"]["num_rows"]
    return f"{ensemble.path}, version {ensemble.version}: parity on {num_rows:,} rows"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What `bench` found.

    Attributes:
        served: the objective, computed from the served scores.
    """

    report: BenchmarkReport
    served: float
    analysis: "Analysis"


def bench(
    server: Server,
    prepared: "PreparedData",
    ensemble: "ExportedEnsemble",
    batch_sizes: Sequence[int],
    config: LoadConfig,
    *,
    progress: Progress = SILENT,
) -> Measured:
    """Score the held-out rows, check that the served quality matches the offline quality, analyze the scores, then
    load-test the server.
    """
    from rankline.report.analysis import Analysis, analyze
    from rankline.scoring.read_rows import select
    from rankline.training.evaluation import objective_of, score_heads

    ensemble.check_made_from(prepared.manifest)
    heads, heldout, objective = prepared.spec.heads, prepared.heldout(), objective_of(prepared.spec.heads)
    found: list[tuple[float, Analysis]] = []

    def in_order(client: "Client", scores: "NDArray[Any]") -> "NDArray[Any]":
        by_output = client.schema.by_output(scores)
        return _narrow(concat_outputs([by_output[name].reshape(len(scores), -1) for name in output_names(heads)]))

    def check_quality(client: "Client", scores: "NDArray[Any]") -> None:
        labels = _narrow(concat_outputs([heldout[head.column].to_numpy().reshape(len(scores), -1) for head in heads]))
        ordered = in_order(client, scores)
        served = score_heads(heads, labels, ordered)[objective.name]
        _check_served(objective.title, served, ensemble.offline_metrics[f"valid_{objective.name}"])
        progress.update(0, 1, "shuffling columns")

        def predict(rows: "pa.Table") -> "NDArray[Any]":
            return in_order(client, client.predict(select(rows, client.schema)))

        found.append((served, analyze(prepared, heldout, labels, ordered, predict)))

    report = bench_rows(server, heldout, ensemble, batch_sizes, config, progress=progress, check=check_quality)
    ((served, analysis),) = found
    quality = {**ensemble.offline_metrics, f"served_{objective.name}": served}
    return Measured(report=replace(report, quality=quality), served=served, analysis=analysis)


def trained_by(run_id: str, path: Path) -> "TrainedModel | None":
    """Return the model at `path` if this run trained it. Another run may have replaced it since."""
    from rankline.workflows.schema.model_artifact import TrainedModel

    try:
        trained = TrainedModel.load(path)
    except ArtifactError:
        return None
    return trained if trained.run_id == run_id else None


def _narrow(values: "NDArray[Any]") -> "NDArray[Any]":
    return values[:, 0] if values.shape[1] == 1 else values


def bench_rows(
    server: Server,
    rows: "pa.Table",
    ensemble: "ExportedEnsemble",
    batch_sizes: Sequence[int],
    config: LoadConfig,
    *,
    progress: Progress = SILENT,
    check: "Callable[[Client, NDArray[Any]], None]" = lambda *_: None,
) -> BenchmarkReport:
    """Load-test a server after validating its scores with `check` and comparing them with in-process scores."""
    from rankline.registry.status import served_version
    from rankline.scoring.read_rows import select
    from rankline.serving.client import Client
    from rankline.serving.loadtest.runner import measure
    from rankline.serving.server.in_process import open_ensemble

    if (served := served_version(server.url, ensemble)) != ensemble.version:
        promote = command("promote", ensemble.name, "--to", str(served), repository=ensemble.path.parent)
        raise ServingError(
            f"the server at {server.url} runs version {served} of {ensemble.name!r}, but version {ensemble.version} is "
            f"active here. Restart the server, or activate its version here: {promote}"
        )
    with ExitStack() as stack:
        client = stack.enter_context(Client(server.url, ensemble.name))
        rows = select(rows, client.schema)
        scores = client.predict(rows)
        check(client, scores)
        with open_ensemble(ensemble) as own:
            expected = own.predict(rows)
            rounding = _rounding(own.predict, rows, expected)
        config = replace(config, tolerance=max(config.tolerance, min(_TIMES_ROUNDING * rounding, _MAX_ROUNDING)))
        if not (worst := float(relative_error(scores, expected).max(initial=0))) <= config.tolerance:
            raise ServingError(
                f"the served scores differ by up to {worst:.2g} from the scores computed locally with {ensemble.path}. "
                "The server is running a different export; restart it."
            )
        return measure(
            client,
            rows,
            batch_sizes,
            config=config,
            expected=expected,
            version=ensemble.version,
            identity=stack.enter_context(Client(server.url, server.identity)) if server.identity else None,
            process_ids=server.process_ids,
            progress=progress,
        )


def _rounding(predict: "Callable[[pa.Table], NDArray[Any]]", rows: "pa.Table", expected: "NDArray[Any]") -> float:
    """Return the largest difference between the score of a row alone and in a batch. Unscaled inputs increase it."""
    alone = [predict(rows.slice(row, 1)) for row in range(min(_NUM_ALONE, len(rows)))]
    return max((float(relative_error(one, expected[[row]]).max()) for row, one in enumerate(alone)), default=0.0)


def run(
    recipe: Recipe,
    source: SourceConfig,
    workspace: Workspace,
    stages: Stages,
    *,
    num_seeds: int,
    batch_sizes: Sequence[int],
) -> RunResult:
    """Run all stages. If a stage fails, the artifacts of earlier stages remain."""
    from rankline.serving.loadtest.runner import check_batch_sizes

    # Check before the long work. Rows with histories are ranked together with their candidates.
    check_batch_sizes(batch_sizes, recipe.serving.max_rows(with_candidates=recipe.dataset.sequence is not None))
    check_store(uri_of(workspace.root))
    refuse_other_project(workspace.ensemble, recipe.name, workspace.model, recipe.dataset.inputs)
    with ExitStack() as stack:
        stack.enter_context(working_in(workspace.directory))
        prepared, description = prepare(recipe, source, workspace, stages)
        from rankline.serving.export.exporter import check_compiles

        check_compiles(prepared, recipe.serving)  # fail before training
        trained, metrics = train(recipe, prepared, workspace, stages, num_seeds)
        ensemble = export(recipe, recipe.serving, prepared, workspace, stages, trained=trained)
        with stages.stage("serve") as progress:
            server = stack.enter_context(server_for(workspace.ensemble, log_path=workspace.log))
            progress.update(1, 1, f"tritonserver on {server.url}")
        with stages.stage("bench") as progress:
            found = bench(server, prepared, ensemble, batch_sizes, _SHORT, progress=progress)
            progress.update(1, 1, describe_served(prepared, found.served))
    quality = Quality(
        per_seed=metrics, best_auc=prepared.spec.metadata.best_auc, served=found.served, heads=prepared.spec.heads
    )
    return RunResult(
        recipe=recipe,
        workspace=workspace,
        source=description,
        quality=quality,
        report=found.report,
        analysis=found.analysis,
        prepared=prepared,
        trained=trained,
        ensemble=ensemble,
    )


def write_json(document: Mapping[str, Any], path: Path) -> None:
    """Write JSON atomically to a file, or to standard output if the path is `-`."""
    text = json.dumps(document, indent=2) + "\n"
    if is_stdout(path):
        sys.stdout.write(text)
    else:
        with output_file(path) as file:
            file.write_text(text, encoding="utf-8")


def _of_seed(number: int, of: int, note: str) -> str:
    return f"seed {number + 1} of {of}: {note}" if of > 1 else note


def _describe_rows(prepared: "PreparedData") -> str:
    from rankline.scoring.unseen import mostly_unseen, untrained_classes

    details = prepared.manifest.details
    parts = [f"{count:,} {split}" for split, count in details["rows"].items()]
    parts += [f"dropped {count:,} ({reason})" for reason, count in details["dropped"].items() if count]
    parts += [f"kept {count:,} ({remark})" for remark, count in details["noticed"].items() if count]
    unseen = [
        f"; {share:.0%} of the validation rows have a {name} that is absent from the training rows, so the model "
        "learns nothing from it; remove the column"
        for name, share in mostly_unseen(prepared).items()
    ]
    unseen += [
        f"; the training rows contain no {label} {listed(list(map(repr, names)), 5)}, so the model cannot learn it"
        for label, names in untrained_classes(prepared).items()
    ]
    return ", ".join(parts) + "".join(unseen)


def describe_served(prepared: "PreparedData", served: float) -> str:
    from rankline.training.evaluation import objective_of

    return f"served {objective_of(prepared.spec.heads).title} {quality_figure(served)}"


def _describe_quality(heads: Sequence[Head], metrics: Mapping[int, Mapping[str, float]]) -> str:
    from rankline.training.evaluation import metric_names, objective_of

    objective = objective_of(heads)
    figures = [values[f"valid_{objective.name}"] for values in metrics.values()]
    spread = f" ± {quality_figure(statistics.stdev(figures))} over {len(figures)} seeds" if len(figures) > 1 else ""
    if len(figures) > 1 and len(set(map(str, metrics.values()))) == 1:
        spread += " (the seed has no effect on this model)"
    others = {
        metric.title: [values[f"valid_{name}"] for values in metrics.values() if f"valid_{name}" in values]
        for name, (_, metric) in metric_names(heads).items()
        if metric.title and name != objective.name and len(heads) == 1
    }
    beside = [f"{title} {quality_figure(statistics.fmean(of_seeds))}" for title, of_seeds in others.items() if of_seeds]
    return ", ".join([f"{objective.title} {quality_figure(statistics.fmean(figures))}{spread}", *beside])


def _check_served(title: str, served: float, offline: float) -> None:
    if not abs(served - offline) <= _TOLERANCE * max(1.0, abs(offline)):
        raise ServingError(
            f"{title} is {served:.5f} for the served scores, but was {offline:.5f} offline. If the server has loaded "
            "a different export, restart the server; otherwise, export the model again."
        )
