"""The verb `sim`: the command line of NVIDIA's SIM for TensorFlow 2, its parameters, modes and log, on our training."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rankline.display import Stages, say
from rankline.options import Overrides, with_options
from rankline.sim_options import ALIASES, INFERENCE, TRAIN, SimOptions
from serving.engines.tensorflow.operations import check_loaded
from training.affinity import set_affinity
from training.config import SessionConfig, TrainConfig
from training.frameworks import TENSORFLOW
from training.models import check_rows, model_named
from workflows.allocator import freed_memory_kept
from workflows.artifacts import MANIFEST, Manifest, load_manifest, refuse_foreign
from workflows.errors import ArtifactError, ConfigError
from workflows.extras import require
from workflows.feature_spec import TFRECORD, Feature, FeatureSpec
from workflows.progress import Progress
from workflows.trained import KIND as TRAINED
from workflows.trained import TrainedModel

if TYPE_CHECKING:
    from training.checkpoints import Checkpoint
    from training.inference import Scorer
    from training.observers import Observer
    from training.tracking import RunLog, TrackingConfig
    from training.train import OpenSplit
    from training.trainers.base import Batches
    from workflows.feature_spec import Source
    from workflows.prepared import PreparedData
    from workflows.spec_file import Chunk

    Step = Callable[[Mapping[str, Any], Any], dict[str, float]]

CONTEXT: dict[str, Any] = {"token_normalize_func": lambda name: name.replace("_", "-")}
"""Settings of the verb: its options are found with underscores, as in the document, and with dashes."""

_TRAIN, _VALID, _TEST = "train", "valid", "test"
_MODEL, _IMPORTED = "model", "imported"
_SEED_BITS = 31
_FREE = ("epochs", "learning_rate")
_OF_THE_MODEL = ("model", "embedding_dim", "hidden", "stage_one_hidden", "aux_hidden", "short_history", "variant")


@with_options(SimOptions)
def sim_command(*, overrides: Overrides) -> None:
    """NVIDIA's SIM for TensorFlow 2 by its own parameters; --model_type and --model-type are the same.

    **Examples**

    rankline sim --dataset_dir work/amazon-sim/prepared --epochs 3 --global_batch_size 4096

    rankline sim --dataset_dir work/amazon-sim/prepared --mode inference --benchmark --global_batch_size 4096
    """
    config = overrides.apply(SimOptions())
    require(TENSORFLOW.module, feature="sim", extra=TENSORFLOW.extra)
    set_affinity(config.affinity)  # threads that start from here on are bound too
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


# --- What all modes do


def _prepared(config: SimOptions) -> "PreparedData":
    """The data; what the document calls test is our validation, unless the spec has both."""
    if model_named(config.model_type).framework != TENSORFLOW:
        raise ConfigError(f"--model_type is {config.model_type!r}, expected a TensorFlow model, such as sim.")
    if config.dataset_dir is None:
        raise ConfigError("--dataset_dir is missing. Give the directory of prepared data.")
    from training.transcode import KIND as TRANSCODED
    from workflows.prepared import KIND, PreparedData  # with all datasets, and pandas

    directory = config.dataset_dir
    if not directory.is_dir():
        raise ConfigError(
            f"--dataset_dir: {directory} is not a directory. Give one with prepared data or with a feature spec."
        )
    if (kind := _kind(directory)) in (None, TRANSCODED):
        if (directory / config.feature_spec).is_file():
            return _imported(config, directory / config.feature_spec)
        if kind is None:
            raise ConfigError(
                f"--dataset_dir: {directory} holds neither prepared data nor {config.feature_spec}. Give the name of "
                "its feature spec (--feature_spec), or import files that have a metadata.json: rankline import"
            )
    manifest = load_manifest(directory, KIND)
    spec = FeatureSpec.read(directory / config.feature_spec)
    if _TEST in spec.sources:
        spec = replace(spec, sources={**spec.sources, _VALID: spec.source(_TEST)})
    check_rows(spec, model_named(config.model_type)())
    prepared = PreparedData(path=config.dataset_dir, spec=spec, manifest=manifest)
    for split in (_TRAIN, _VALID):
        source = spec.source(split)
        _check_prebatch(config, split, source, [directory / file for file in source.files], spec.labels)
    return prepared


def _imported(config: SimOptions, spec: Path) -> "PreparedData":
    """Files of any kind with a feature spec, imported beside the results unless they were before."""
    from training.data_set import DataSet
    from training.imported import import_data, mappings_of, spec_of
    from workflows.datasets.raw import fingerprint_of
    from workflows.prepared import PreparedData

    output = config.results_dir / _IMPORTED
    data = DataSet.read(spec)
    mappings = mappings_of(data)
    check_rows(spec_of(data), model_named(config.model_type)())
    for split, mapping in mappings.items():
        for chunk in data.spec.mappings[mapping]:
            columns = [data.spec[name] for name in chunk.features]
            _check_prebatch(config, split, chunk, [spec.parent / file for file in chunk.files], columns)
    if (output / MANIFEST).is_file():
        found = PreparedData.load(output)
        if found.manifest.made_from.get("files") == fingerprint_of([data.path, *data.files]):
            return found
    with Stages(["import"]) as stages, stages.stage("import") as progress:
        return import_data(spec, output, progress=progress)


def _check_prebatch(
    config: SimOptions, split: str, source: "Source | Chunk", files: Sequence[Path], columns: Sequence[Feature]
) -> None:
    """Refuse a number of rows per record other than that of the files. How it divides the batch does not matter."""
    name = "prebatch_train_size" if split == _TRAIN else "prebatch_test_size"
    expected = getattr(config, name)
    if not expected or (split == _TRAIN and config.mode != TRAIN):
        return
    if source.type != TFRECORD:
        raise ConfigError(
            f"--{name} is {expected}, and the {split} data is {source.type}, which has no records. Leave it out, or "
            f"convert the data: rankline convert RECIPE --to {TFRECORD} --prebatch {expected}"
        )
    from training.data_set import counting_feature
    from training.loader.tfrecord import rows_per_record

    if (counted := counting_feature(columns)) is None:  # importing refuses this
        return
    found = rows_per_record(files, counted)
    is_one_record_each = source.num_rows is not None and source.num_rows <= found * len(files)
    if found > expected or (found < expected and not is_one_record_each):
        raise ConfigError(
            f"--{name} is {expected}, and the {split} data has {found} rows per record. Give {found}, or 0 to take "
            "what is there."
        )


def _limit_threads(config: SimOptions) -> None:
    """Set TensorFlow's numbers of threads, which it takes before its first operation only."""
    if not (config.inter_op_parallelism or config.intra_op_parallelism):
        return
    import tensorflow as tf

    try:
        tf.config.threading.set_inter_op_parallelism_threads(config.inter_op_parallelism)
        tf.config.threading.set_intra_op_parallelism_threads(config.intra_op_parallelism)
    except RuntimeError as error:
        raise ConfigError(f"the numbers of threads can no longer be set ({error}). Start a new process.") from None


def _precision(config: SimOptions) -> str:
    """What mixed precision is on this machine: TensorFlow's CPU kernels add float16 up in float16."""
    if not config.amp:
        return "float32"
    import tensorflow as tf

    return "float16" if tf.config.list_physical_devices("GPU") else "bfloat16"


def _with_seed(config: SimOptions, left: "Checkpoint | None" = None) -> SimOptions:
    """The seed that was given, or else that of the run that goes on, or one that is drawn."""
    if config.seed >= 0:
        return config
    return replace(config, seed=left.config["seed"] if left else secrets.randbelow(1 << _SEED_BITS))


def open_splits(config: SimOptions) -> "OpenSplit":
    """Opens a split as the parameters say, in place of `Trainer.batches`; evaluation has the batches of training."""

    def open_split(
        prepared: Path,
        spec: FeatureSpec,
        split: str,
        batch_size: int,  # noqa: ARG001  (training evaluates in batches of its own)
        *,
        shuffle: bool,
        seed: int,
    ) -> "Batches":
        from training.loader.passes import CachedBatches, repeated
        from training.loader.splits import tensorflow_loader

        loader = tensorflow_loader(
            prepared,
            spec,
            split,
            config.global_batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=config.benchmark or (shuffle and config.drop_remainder),
            prefetch=config.prefetch_train_size if shuffle else config.prefetch_test_size,
            num_threads=config.num_parallel_calls,
        )
        if shuffle:
            return repeated(loader, max(1, config.repeat_count))
        return loader if config.disable_cache else CachedBatches(loader)

    return open_split


def _tracking(config: SimOptions) -> "TrackingConfig":
    from rankline.tracking.store import server
    from training.tracking import TrackingConfig

    return TrackingConfig(
        directory=config.results_dir,
        experiment="sim",
        run_name=f"{config.mode}, {config.model_type}, seed {config.seed}",
        server=server(),
    )


def _params(config: SimOptions) -> dict[str, Any]:
    """All parameters, for MLflow, beside those that training logs by our names."""
    return {f"sim.{name}": value for name, value in asdict(config).items()}


def _in_a_line(figures: Mapping[str, float]) -> str:
    latencies = ", ".join(f"{name} {figures[f'latency_{name}']:.2f}" for name in ("mean", "p90", "p95", "p99"))
    return f"{figures['throughput']:,.0f} samples/s, {latencies} ms per step"


# --- Training


def _train(config: SimOptions, prepared: "PreparedData", progress: Progress) -> str:
    """Train, evaluating on both splits after each epoch.

    Returns:
        What came out, in a line.
    """
    from training.sim_log import SimLog, TrainingLog
    from training.train import train

    left = _loaded(Path(config.load_checkpoint_path)) if config.load_checkpoint_path else None
    config = _with_seed(config, left)
    choices = config.train_config(prepared.spec, _precision(config))
    open_split, lines = open_splits(config), list[TrainingLog]()
    spec = choices.model.training_view(prepared.spec)
    steps_per_epoch = len(open_split(prepared.path, spec, _TRAIN, choices.batch_size, shuffle=True, seed=0))

    def observers(run: "RunLog") -> list["Observer"]:
        if run.is_reopened:
            run.note(f"Continues to epoch {config.epochs}.")
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
    from training.checkpoints import KIND, Checkpoint

    if (kind := _kind(path)) != KIND:
        found = "does not exist" if not path.exists() else f"is {kind or 'no Rankline artifact'}"
        raise ArtifactError(f"{path} {found}, expected a {KIND}: what an earlier run had as --save_checkpoint_path.")
    return Checkpoint.load(path)


@contextmanager
def _checkpoint(config: SimOptions, choices: TrainConfig, left: "Checkpoint | None") -> Iterator[Path | None]:
    """Where the run has its checkpoint: the place to save it, with what is to go on in it, or one that does not last.

    Args:
        config: names the places.
        choices: of the run.
        left: what is to go on, of another number of epochs, maybe.
    """
    from training.checkpoints import KIND, plain

    save, load = (Path(path) if path else None for path in (config.save_checkpoint_path, config.load_checkpoint_path))
    if save and not (load and save.resolve() == load.resolve()):
        refuse_foreign(save, KIND)
        if save.is_dir() and any(save.iterdir()):
            raise ConfigError(
                f"{save} is the checkpoint of another run, which would be replaced. Choose another path, or go on with "
                f"--load_checkpoint_path {save}."
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
            f"the checkpoint {load} has {done} whole epochs and --epochs is {config.epochs}: nothing is left to train. "
            f"Give at least {done + 1}."
        )
    config.results_dir.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".sim-", dir=config.results_dir) as directory:
        place = save or Path(directory) / "checkpoint"
        # Without a schedule the number of epochs does not change what each one trains.
        replace(left, config={**left.config, "epochs": config.epochs}).write(place)
        yield place


def _check_alike(
    before: Mapping[str, Any], config: SimOptions, choices: TrainConfig, names: Iterable[str], where: str
) -> None:
    """Refuse a checkpoint or model with other choices, named as the parameters are here."""
    from training.checkpoints import plain

    now = plain(choices)

    def shown(name: str, value: Any) -> Any:
        if name == "short_history" and value is not None:
            return config.long_seq_length + now[name] - value
        return value != "float32" if name == "precision" else value

    if odd := [
        f"{ALIASES.get(n, n)} {shown(n, now.get(n))!r}, there {shown(n, before.get(n))!r}"
        for n in names
        if now.get(n) != before.get(n)
    ]:
        raise ConfigError(
            f"{where} is of another configuration: got {'; '.join(odd)}. Give the parameters as they were, or another "
            "path."
        )


def _benchmark_training(config: SimOptions, prepared: "PreparedData", progress: Progress) -> str:
    """Take steps of training and measure them; nothing is evaluated, and nothing stays.

    Returns:
        What came out, in a line.
    """
    from training.inference import with_rows
    from training.sim_log import losses
    from training.trainers import trainer_for

    config = _with_seed(config)
    choices = config.train_config(prepared.spec, _precision(config))
    spec = with_rows(choices.model.training_view(prepared.spec), _TRAIN, config.global_batch_size)
    framework = trainer_for(TENSORFLOW)
    framework.check(spec, choices)
    batches = open_splits(config)(prepared.path, spec, _TRAIN, config.global_batch_size, shuffle=True, seed=config.seed)
    with framework.deterministic() if config.deterministic else nullcontext():
        trainer = framework(spec, choices, num_steps=config.benchmark_warmup_steps + config.benchmark_steps)
        sums = (0.0, 0.0)

        def step(inputs: Mapping[str, Any], labels: Any) -> dict[str, float]:
            nonlocal sums
            before = sums
            trainer.step(inputs, labels)
            sums = trainer.loss_sum(), trainer.added_sum()  # a device may compute on until it is asked
            return losses(*((now - then) / labels.shape[0] for now, then in zip(sums, before, strict=True)))

        return _measure(config, step, batches, progress)


# --- Inference


def _infer(config: SimOptions, prepared: "PreparedData", progress: Progress) -> str:
    """Score the test rows once, or as often as a benchmark asks for, and measure the steps.

    Returns:
        What came out, in a line.
    """
    from training.inference import score_each_size, with_rows

    config = _with_seed(config)
    scorer = _scorer(config, prepared)
    spec = prepared.spec.for_scoring
    if config.benchmark:
        spec = with_rows(spec, _VALID, config.global_batch_size)
    batches = open_splits(config)(prepared.path, spec, _VALID, config.global_batch_size, shuffle=False, seed=0)
    if not config.benchmark:  # which has whole batches only, and steps to warm up
        score_each_size(scorer, batches)

    def step(inputs: Mapping[str, Any], labels: Any) -> dict[str, float]:  # noqa: ARG001  (scoring needs none)
        scorer(inputs)
        return {}

    return _measure(config, step, batches, progress)


def _scorer(config: SimOptions, prepared: "PreparedData") -> "Scorer":
    """The model that the parameters name, never one that nobody trained unless they say so."""
    from training import inference
    from training.checkpoints import KIND as CHECKPOINT

    choices = config.train_config(prepared.spec, _precision(config))
    if config.random_weights:
        return inference.untrained(prepared.spec, choices)
    path = Path(config.load_checkpoint_path or config.results_dir / _MODEL)
    if not path.exists():
        raise ConfigError(
            f"there is no model to score with: {path} does not exist. Train one, correct --load_checkpoint_path, or "
            "measure one that nobody trained with --random_weights."
        )
    kind = _kind(path)
    if kind == CHECKPOINT:
        checkpoint = _loaded(path)
        _check_alike(checkpoint.config, config, choices, _OF_THE_MODEL, str(path))
        return inference.from_checkpoint(checkpoint, prepared.spec, precision=choices.precision, xla=config.xla)
    if config.amp or config.xla:
        raise ConfigError(
            f"{path} scores as it is served, in float32 and not compiled. Leave out --amp and --xla, or give what an "
            "earlier run had as --save_checkpoint_path."
        )
    if kind == TRAINED:
        trained = TrainedModel.load(path)
        _check_alike(trained.manifest.details["config"], config, choices, _OF_THE_MODEL, str(path))
        path = trained.saved_model
    check_loaded(path)
    return inference.saved(path, prepared.spec)


def _kind(path: Path) -> str | None:
    """What an artifact is; None for something else."""
    return Manifest.read(path).kind if (path / MANIFEST).is_file() else None


def _measure(config: SimOptions, step: "Step", batches: "Batches", progress: Progress) -> str:
    """Take the steps of a benchmark, or of one pass, with a line in the log for each and one for all.

    Args:
        config: says how many, and where the log goes.
        step: returns what the log is to say beside the rate.
        batches: to take steps with.
        progress: told about steps.

    Returns:
        What came out, in a line.
    """
    from training.sim_log import SERIES, SimLog
    from training.step_times import time_steps
    from training.tracking import tracked_run

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
    return _in_a_line(figures)
