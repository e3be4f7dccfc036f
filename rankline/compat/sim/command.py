"""The `sim` command, which reimplements `main.py` of NVIDIA's SIM with Rankline's training code."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rankline.compat.sim.options import INFERENCE, PARAMETERS, TRAIN, SimOptions, set_affinity
from rankline.recipes.overrides import Overrides, with_options
from rankline.serving.engines.tensorflow.allowed_operations import check_loaded
from rankline.terminal.console import Stages, say
from rankline.training.config.train import SessionConfig, TrainConfig
from rankline.training.models import check_rows, model_named
from rankline.training.models.frameworks import TENSORFLOW
from rankline.workflows.core.errors import ArtifactError, ConfigError
from rankline.workflows.core.machine import freed_memory_kept
from rankline.workflows.core.progress import Progress
from rankline.workflows.schema.feature_spec import TFRECORD
from rankline.workflows.schema.model_artifact import KIND as TRAINED
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.storage.artifacts import MANIFEST, Manifest, refuse_foreign

if TYPE_CHECKING:
    from rankline.compat.sim.scorers import Scorer
    from rankline.training.run.checkpoint import Checkpoint
    from rankline.training.run.observers import Observer
    from rankline.training.tracking import RunLog, TrackingConfig
    from rankline.training.trainers.base import Batches
    from rankline.workflows.preprocess.prepared_data import PreparedData

    Step = Callable[[Mapping[str, Any], Any], dict[str, float]]

CONTEXT: dict[str, Any] = {"token_normalize_func": lambda name: name.replace("_", "-")}
"""Settings of the command that accept its options with underscores, as in the document, and with dashes."""

_TRAIN, _VALID, _TEST = "train", "valid", "test"
_MODEL, _IMPORTED = "model", "imported"
_TRANSCODED = "data-set"  # artifact kind of early releases: files with a feature spec
_SEED_BITS = 31
_FREE = ("epochs", "learning_rate")
_OF_THE_MODEL = ("model", "embedding_dim", "hidden", "stage_one_hidden", "aux_hidden", "short_history", "variant")


@with_options(SimOptions)
def sim_command(*, overrides: Overrides) -> None:
    """Run NVIDIA's SIM for TensorFlow 2 with its original parameters; --model_type and --model-type are equivalent.

    **Examples**

    rankline sim --dataset_dir work/amazon-sim/prepared --epochs 3 --global_batch_size 4096

    rankline sim --dataset_dir work/amazon-sim/prepared --mode inference --benchmark --global_batch_size 4096
    """
    config = overrides.apply(SimOptions())
    TENSORFLOW.require(feature="sim")
    set_affinity(config.affinity)  # also binds threads started later
    _limit_threads(config)
    prepared = _prepared(config)
    with Stages([config.mode]) as stages, stages.stage(config.mode) as progress:
        if config.mode == INFERENCE:
            note = _infer(config, prepared, progress)
        elif config.benchmark:
            note = _benchmark_training(config, prepared, progress)
        else:
            note = _train(config, prepared, progress)
        progress.update(1, 1, note)
    say(f"log: {config.log_path}")


# --- Shared by all modes


def _prepared(config: SimOptions) -> "PreparedData":
    """Load the data, importing it if necessary.

    The document's test split is our validation split, unless the spec has both.
    """
    if model_named(config.model_type).framework != TENSORFLOW:
        raise ConfigError(f"--model_type is {config.model_type!r}, expected a TensorFlow model, such as sim.")
    if config.dataset_dir is None:
        raise ConfigError("--dataset_dir is missing. Pass the directory of prepared data.")
    from rankline.workflows.preprocess.prepared_data import PreparedData  # slow: imports all datasets and pandas

    directory = config.dataset_dir
    if not directory.is_dir():
        raise ConfigError(
            f"--dataset_dir: {directory} is not a directory. Pass a directory that contains prepared data or a "
            "feature spec."
        )
    if _kind(directory) in (None, _TRANSCODED):
        return _imported(config, directory / config.feature_spec)
    data = PreparedData.load(directory, spec_name=config.feature_spec)
    spec = data.spec
    if _TEST in spec.sources:
        spec = replace(spec, sources={**spec.sources, _VALID: spec.source(_TEST)})
    check_rows(spec, model_named(config.model_type)())
    for split in (_TRAIN, _VALID):
        source = spec.source(split)
        _check_prebatch(config, split, source, directory, spec.labels)
    return replace(data, spec=spec)


def _imported(config: SimOptions, path: Path) -> "PreparedData":
    """Import files with a feature spec into the results directory, or reuse an earlier import of the same files."""
    if not path.is_file():
        raise ConfigError(
            f"--dataset_dir: {path.parent} contains neither prepared data nor {path.name}. If the feature spec "
            "has a different name, pass the name with --feature_spec."
        )
    from rankline.training.data.import_data import import_data, mappings_of, spec_of
    from rankline.training.data.spec_files import DataSet
    from rankline.workflows.preprocess.prepared_data import PreparedData
    from rankline.workflows.preprocess.raw import fingerprint_of

    output = config.results_dir / _IMPORTED
    data = DataSet.read(path)
    mappings = mappings_of(data)
    check_rows(spec_of(data), model_named(config.model_type)())
    for split, mapping in mappings.items():
        for chunk in data.spec.mappings[mapping]:
            _check_prebatch(config, split, chunk, path.parent, [data.spec[name] for name in chunk.features])
    if (output / MANIFEST).is_file():
        found = PreparedData.load(output)
        if found.manifest.made_from.get("files") == fingerprint_of([data.path, *data.files]):
            return found
    with Stages(["import"]) as stages, stages.stage("import") as progress:
        return import_data(path, output, progress=progress)


def _check_prebatch(config: SimOptions, split: str, source: Any, directory: Path, columns: Iterable[Any]) -> None:
    """Check the number of rows per record in TFRecord files. The batch size need not be a multiple of it."""
    name = "prebatch_train_size" if split == _TRAIN else "prebatch_test_size"
    expected = getattr(config, name)
    if not expected or (split == _TRAIN and config.mode != TRAIN):
        return
    if source.type != TFRECORD:
        raise ConfigError(
            f"--{name} is {expected}, but the {split} data is {source.type}, which does not group rows "
            "into records. Remove the option, or convert the data: rankline convert RECIPE "
            f"--to {TFRECORD} --prebatch {expected}"
        )
    from rankline.training.data.loader.tfrecord import rows_per_record
    from rankline.training.data.spec_files import counting_feature

    if (counted := counting_feature(columns)) is None:  # the import reports this
        return
    found = rows_per_record([directory / file for file in source.files], counted)
    is_one_record_each = source.num_rows is not None and source.num_rows <= found * len(source.files)
    if found > expected or (found < expected and not is_one_record_each):
        raise ConfigError(
            f"--{name} is {expected}, but the {split} data has {found} rows per record. Pass {found}, or 0 to use "
            "the size in the data."
        )


def _limit_threads(config: SimOptions) -> None:
    """Set TensorFlow's thread counts, which cannot be changed after its first operation."""
    if not (config.inter_op_parallelism or config.intra_op_parallelism):
        return
    import tensorflow as tf

    try:
        tf.config.threading.set_inter_op_parallelism_threads(config.inter_op_parallelism)
        tf.config.threading.set_intra_op_parallelism_threads(config.intra_op_parallelism)
    except RuntimeError as error:
        raise ConfigError(f"the thread counts can no longer be changed ({error}). Start a new process.") from None


def _choices(config: SimOptions, prepared: "PreparedData") -> TrainConfig:
    """Convert the parameters to a training config, choosing the precision according to the device.

    TensorFlow's CPU kernels accumulate float16 in float16, so mixed precision on a CPU is bfloat16.
    """
    if not config.amp:
        return config.train_config(prepared.spec, "float32")
    import tensorflow as tf

    has_gpu = tf.config.list_physical_devices("GPU")
    return config.train_config(prepared.spec, "float16" if has_gpu else "bfloat16")


def _with_seed(config: SimOptions, left: "Checkpoint | None" = None) -> SimOptions:
    if config.seed >= 0:
        return config
    return replace(config, seed=left.config["seed"] if left else secrets.randbelow(1 << _SEED_BITS))


def _tracking(config: SimOptions) -> "TrackingConfig":
    from rankline.runs.store import server
    from rankline.training.tracking import TrackingConfig

    return TrackingConfig(
        directory=config.results_dir,
        experiment="sim",
        run_name=f"{config.mode}, {config.model_type}, seed {config.seed}",
        server=server(),
    )


def _params(config: SimOptions) -> dict[str, Any]:
    return {f"sim.{name}": value for name, value in asdict(config).items()}


def _kind(path: Path) -> str | None:
    return Manifest.read(path).kind if (path / MANIFEST).is_file() else None


# --- Training. Each mode returns a one-line result.


def _train(config: SimOptions, prepared: "PreparedData", progress: Progress) -> str:
    from rankline.compat.sim.batches import SplitOpener
    from rankline.compat.sim.log import SimLog, TrainingLog
    from rankline.training.run.train import train

    left = _loaded(Path(config.load_checkpoint_path)) if config.load_checkpoint_path else None
    config = _with_seed(config, left)
    choices = _choices(config, prepared)
    open_split, lines = SplitOpener(config), list[TrainingLog]()
    spec = choices.model.training_view(prepared.spec)
    steps_per_epoch = len(open_split(prepared.path, spec, _TRAIN, shuffle=True, seed=0))

    def observers(run: "RunLog") -> list["Observer"]:
        if run.is_reopened:
            run.note(f"Continuing to epoch {config.epochs}.")
        else:
            run.log_params(_params(config))
        lines.append(TrainingLog(log, run, steps_per_epoch=steps_per_epoch, warmup_steps=config.benchmark_warmup_steps))
        return list(lines)

    with _checkpoint(config, choices, left) as place, SimLog(config.log_path, append=left is not None) as log:
        trained = train(
            prepared,
            config.results_dir / _MODEL,
            choices,
            session=SessionConfig(
                checkpoint_every=steps_per_epoch if config.save_checkpoint_path else 0,
                resume=left is not None,
                evaluate_train=True,
                deterministic=config.deterministic,
            ),
            tracking=_tracking(config),
            progress=progress,
            checkpoint=place,
            open_split=open_split,
            observers=observers,
        )
        lines[0].end(trained.metrics)
    return f"test AUC {trained.metrics['valid_auc']:.4f}, seed {config.seed}, model: {trained.path}"


def _loaded(path: Path) -> "Checkpoint":
    from rankline.training.run.checkpoint import KIND, Checkpoint

    if (kind := _kind(path)) != KIND:
        found = "does not exist" if not path.exists() else f"is {kind or 'not a Rankline artifact'}"
        raise ArtifactError(f"{path} {found}, expected a {KIND} written by an earlier run with --save_checkpoint_path.")
    return Checkpoint.load(path)


@contextmanager
def _checkpoint(config: SimOptions, choices: TrainConfig, left: "Checkpoint | None") -> Iterator[Path | None]:
    """Yield the path of the run's checkpoint, or None if the run neither saves nor loads a checkpoint.

    The path is `save_checkpoint_path`, or temporary if it is not set. When resuming, it already holds `left`.
    """
    from rankline.training.run.checkpoint import KIND, plain

    save, load = (Path(path) if path else None for path in (config.save_checkpoint_path, config.load_checkpoint_path))
    if save and not (load and save.resolve() == load.resolve()):
        refuse_foreign(save, KIND)
        if save.is_dir() and any(save.iterdir()):
            raise ConfigError(
                f"{save} is the checkpoint of another run and would be overwritten. Choose another path, or "
                f"continue that run with --load_checkpoint_path {save}."
            )
        if save.is_dir():
            save.rmdir()
    if left is None:
        yield save
        return
    _check_alike(left.config, config, choices, [name for name in plain(choices) if name not in _FREE], str(load))
    done = left.position.epoch - 1
    if done > config.epochs or (done == config.epochs and not left.best.weights):
        raise ConfigError(
            f"the checkpoint {load} already has {done} complete epochs, and --epochs is {config.epochs}, so there is "
            f"nothing left to train. Pass --epochs {done + 1} or more."
        )
    config.results_dir.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".sim-", dir=config.results_dir) as directory:
        place = save or Path(directory) / "checkpoint"
        # There is no learning-rate schedule, so the number of epochs does not affect the training of each epoch.
        replace(left, config={**left.config, "epochs": config.epochs}).write(place)
        yield place


def _check_alike(
    before: Mapping[str, Any], config: SimOptions, choices: TrainConfig, names: Iterable[str], where: str
) -> None:
    """Raise `ConfigError` if a checkpoint or model was trained with different settings, and list the differences."""
    from rankline.training.run.checkpoint import plain

    now = plain(choices)

    def shown(name: str, value: Any) -> Any:
        if name == "short_history" and value is not None:
            return config.long_seq_length + now[name] - value
        return value != "float32" if name == "precision" else value

    if odd := [
        f"{PARAMETERS.get(n, n)} {shown(n, now.get(n))!r}, previously {shown(n, before.get(n))!r}"
        for n in names
        if now.get(n) != before.get(n)
    ]:
        raise ConfigError(
            f"{where} was saved with different parameters: got {'; '.join(odd)}. Pass the original parameters, or "
            "another path."
        )


def _benchmark_training(config: SimOptions, prepared: "PreparedData", progress: Progress) -> str:
    """Measure training steps, without evaluating or saving anything."""
    from rankline.compat.sim.batches import SplitOpener, with_rows
    from rankline.compat.sim.log import losses
    from rankline.training.trainers import trainer_for

    config = _with_seed(config)
    choices = _choices(config, prepared)
    spec = with_rows(choices.model.training_view(prepared.spec), _TRAIN, config.global_batch_size)
    framework = trainer_for(TENSORFLOW)
    framework.check(spec, choices)
    batches = SplitOpener(config)(prepared.path, spec, _TRAIN, shuffle=True, seed=config.seed)
    with framework.deterministic() if config.deterministic else nullcontext():
        trainer = framework(spec, choices, num_steps=config.benchmark_warmup_steps + config.benchmark_steps)
        sums = (0.0, 0.0)

        def step(inputs: Mapping[str, Any], labels: Any) -> dict[str, float]:
            nonlocal sums
            before = sums
            trainer.step(inputs, labels)
            sums = trainer.loss_sum(), trainer.added_sum()  # reading the sums waits for the device
            return losses(*((now - then) / labels.shape[0] for now, then in zip(sums, before, strict=True)))

        return _measure(config, step, batches, progress)


# --- Inference


def _infer(config: SimOptions, prepared: "PreparedData", progress: Progress) -> str:
    """Score the test rows once, or run the configured number of benchmark steps, and report throughput and latency."""
    from rankline.compat.sim.batches import SplitOpener, with_rows
    from rankline.compat.sim.scorers import score_each_size

    config = _with_seed(config)
    scorer = _scorer(config, prepared)
    spec = prepared.spec.for_scoring
    if config.benchmark:
        spec = with_rows(spec, _VALID, config.global_batch_size)
    batches = SplitOpener(config)(prepared.path, spec, _VALID, shuffle=False, seed=0)
    if not config.benchmark:  # a benchmark has only full batches, and warms up by itself
        score_each_size(scorer, batches)

    def step(inputs: Mapping[str, Any], labels: Any) -> dict[str, float]:  # noqa: ARG001  (scoring needs no labels)
        scorer(inputs)
        return {}

    return _measure(config, step, batches, progress)


def _scorer(config: SimOptions, prepared: "PreparedData") -> "Scorer":
    """Return a scorer for the model that the parameters select, or for an untrained model with --random_weights."""
    from rankline.compat.sim import scorers
    from rankline.training.run.checkpoint import KIND as CHECKPOINT

    choices = _choices(config, prepared)
    if config.random_weights:
        return scorers.untrained(prepared.spec, choices)
    path = Path(config.load_checkpoint_path or config.results_dir / _MODEL)
    if not path.exists():
        raise ConfigError(
            f"{path} does not exist, expected a trained model. Train a model first, correct --load_checkpoint_path, "
            "or pass --random_weights to measure an untrained model."
        )
    kind = _kind(path)
    if kind == CHECKPOINT:
        checkpoint = _loaded(path)
        _check_alike(checkpoint.config, config, choices, _OF_THE_MODEL, str(path))
        return scorers.from_checkpoint(checkpoint, prepared.spec, precision=choices.precision, xla=config.xla)
    if config.amp or config.xla:
        raise ConfigError(
            f"{path} is not a checkpoint, so it supports only float32 without XLA. Remove --amp and --xla, or pass a "
            "checkpoint written by an earlier run with --save_checkpoint_path."
        )
    if kind == TRAINED:
        trained = TrainedModel.load(path)
        _check_alike(trained.manifest.details["config"], config, choices, _OF_THE_MODEL, str(path))
        path = trained.saved_model
    check_loaded(path)
    return scorers.saved(path, prepared.spec)


def _measure(config: SimOptions, step: "Step", batches: "Batches", progress: Progress) -> str:
    """Time a benchmark or one pass over the data, and log each step and the totals."""
    from rankline.compat.sim.log import SERIES, SimLog, time_steps
    from rankline.training.tracking import tracked_run

    warmup, counted = config.benchmark_warmup_steps, config.benchmark_steps if config.benchmark else None
    total = len(batches) if counted is None else warmup + counted
    said: dict[str, float] = {}

    def take(inputs: Mapping[str, Any], labels: Any) -> None:
        said.update(step(inputs, labels))

    def tell(number: int, rate: float) -> None:
        log.write([1, number], said | {"samples/s": rate})
        progress.update(number, total, f"{rate:,.0f} samples/s")

    with SimLog(config.log_path) as log, tracked_run(_tracking(config)) as run, freed_memory_kept():
        run.log_params(_params(config))
        figures = time_steps(take, batches, warmup_steps=warmup, num_steps=counted, tell=tell).figures()
        log.write([], figures)
        run.log_metrics({SERIES + name: figure for name, figure in figures.items()}, step=0)
    latencies = ", ".join(f"{name} {figures[f'latency_{name}']:.2f}" for name in ("mean", "p90", "p95", "p99"))
    return f"{figures['throughput']:,.0f} samples/s, {latencies} ms per step"
