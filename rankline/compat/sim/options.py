"""Parameters of the `sim` command, in a module of their own that is fast to import."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankline.launch.worker import Cpu, allowed_cpus, cores_of
from rankline.training.config.train import TrainConfig
from rankline.training.models import model_named
from rankline.training.models.config import VARIANTS
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.validation import check_at_least, check_choice
from rankline.workflows.schema.feature_spec import FILE_NAME, HISTORY, FeatureSpec

TRAIN, INFERENCE = "train", "inference"
_MODES = (TRAIN, INFERENCE)
PARAMETERS = {
    "model": "model_type",
    "hidden": "stage_two_mlp_dims",
    "top_mlp": "stage_two_mlp_dims",
    "stage_one_hidden": "stage_one_mlp_dims",
    "aux_hidden": "aux_mlp_dims",
    "short_history": "long_seq_length",
    "dropout": "dropout_rate",
    "learning_rate": "lr",
    "batch_size": "global_batch_size",
    "precision": "amp",
    **{name: name for name in ("embedding_dim", "variant", "optimizer", "weight_decay", "xla", "epochs", "seed")},
}
"""Mapping from training setting to the document's parameter."""


@dataclass(frozen=True, kw_only=True)
class SimOptions:
    """The parameters of NVIDIA's SIM, with their original names and defaults. The last three are Rankline's additions.

    Attributes:
        model_type: one of sim, dien and din; or another Rankline model, for data without histories.
        embedding_dim: columns of every embedding table.
        stage_one_mlp_dims: units of the dense layers after the search over the long history.
        stage_two_mlp_dims: units of the dense layers before the score.
        aux_mlp_dims: units of the dense layers of the auxiliary loss.
        dataset_dir: prepared data, from `rankline prepare` or `rankline import`, or any files with a feature spec.
        feature_spec: name of the feature spec in dataset_dir.
        optimizer: one of sgd, adagrad, adam, lazy_adam and rowwise_adagrad.
        lr: learning rate.
        weight_decay: decoupled weight decay of all weights except embedding tables.
        epochs: passes over the training rows in total, including those before a loaded checkpoint.
        global_batch_size: rows per step of training, evaluation and inference.
        dropout_rate: dropout rate of all dense layers in training; -1 for none.
        amp: mixed precision, float16 on a GPU and bfloat16 on a CPU.
        xla: compile the dense part of the model with XLA.
        drop_remainder: drop training rows that do not fill a batch.
        disable_cache: read evaluation and inference rows again in each pass. Otherwise they stay in memory after the
            first pass, if they fit into a quarter of it; training rows are never cached, since each epoch has its own
            order.
        repeat_count: passes over the training rows per epoch; 0 means 1.
        prefetch_train_size: batches to load ahead in training.
        prefetch_test_size: batches to load ahead in evaluation and inference.
        long_seq_length: length of the long history; the rest of the longest possible history is the short one.
        prebatch_train_size: expected rows per TFRecord of the training data; 0 accepts any number.
        prebatch_test_size: expected rows per TFRecord of the test data; 0 accepts any number.
        results_dir: directory for the model, the log and MLflow's store.
        log_filename: name of the log in results_dir.
        save_checkpoint_path: where to save the checkpoint after each epoch.
        load_checkpoint_path: checkpoint to continue from; for inference also a trained model or a SavedModel.
        mode: one of train and inference.
        benchmark: only measure steps; benchmarks of training neither evaluate nor save a model.
        benchmark_warmup_steps: initial steps to exclude from throughput and latencies, unless there are no others.
        benchmark_steps: steps that a benchmark measures.
        affinity: one of disabled, socket, single, single_unique, socket_unique_interleaved and
            socket_unique_continuous.
        inter_op_parallelism: operations that TensorFlow runs in parallel; 0 lets it choose.
        intra_op_parallelism: threads of one operation; 0 lets it choose.
        num_parallel_calls: threads that load data; chosen automatically by default.
        seed: random seed of the weights, the order of rows, and dropout; -1 draws a seed and prints it.
        variant: "corrected" follows the papers, "reference" follows NVIDIA's code.
        deterministic: use only kernels with bitwise reproducible results, on any device; slower.
        random_weights: score with untrained weights, to measure speed.
    """

    model_type: str = "sim"
    embedding_dim: int = 16
    stage_one_mlp_dims: tuple[int, ...] = (200,)
    stage_two_mlp_dims: tuple[int, ...] = (200, 80)
    aux_mlp_dims: tuple[int, ...] = (100, 50)
    dataset_dir: Path | None = None
    feature_spec: str = FILE_NAME
    optimizer: str = "adam"
    lr: float = 0.01
    weight_decay: float = 0.0
    epochs: int = 3
    global_batch_size: int = 131_072
    dropout_rate: float = -1.0
    amp: bool = False
    xla: bool = False
    drop_remainder: bool = False
    disable_cache: bool = False
    repeat_count: int = 0
    prefetch_train_size: int = 10
    prefetch_test_size: int = 2
    long_seq_length: int = 90
    prebatch_train_size: int = 0
    prebatch_test_size: int = 0
    results_dir: Path = Path("/tmp/sim")
    log_filename: str = "log.json"
    save_checkpoint_path: str = ""
    load_checkpoint_path: str = ""
    mode: str = TRAIN
    benchmark: bool = False
    benchmark_warmup_steps: int = 20
    benchmark_steps: int = 200
    affinity: str = "socket_unique_interleaved"
    inter_op_parallelism: int = 0
    intra_op_parallelism: int = 0
    num_parallel_calls: int | None = None
    seed: int = -1
    variant: str = VARIANTS[0]
    deterministic: bool = False
    random_weights: bool = False

    def __post_init__(self) -> None:
        check_at_least(self, 1, "embedding_dim", "epochs", "global_batch_size", "benchmark_steps", prefix="--")
        self._require(
            "num_parallel_calls", self.num_parallel_calls is None or self.num_parallel_calls >= 1, "at least 1"
        )
        check_at_least(
            self, 0, "repeat_count", "prefetch_train_size", "prefetch_test_size", "long_seq_length",
            "prebatch_train_size", "prebatch_test_size", "benchmark_warmup_steps", "inter_op_parallelism",
            "intra_op_parallelism", prefix="--",
        )  # fmt: skip
        for name in ("stage_one_mlp_dims", "stage_two_mlp_dims", "aux_mlp_dims"):
            self._require(name, all(units >= 1 for units in getattr(self, name)), "positive integers")
        self._require("lr", self.lr > 0, "a number greater than 0")
        self._require(
            "dropout_rate", self.dropout_rate == -1 or 0 <= self.dropout_rate < 1, "-1, or a number in [0, 1)"
        )
        self._require("seed", self.seed >= -1, "-1 or a nonnegative integer")
        self._require("mode", self.mode in _MODES, " or ".join(_MODES))
        keeps_nothing = self.benchmark or self.mode == INFERENCE
        if self.save_checkpoint_path and keeps_nothing:
            raise ConfigError(
                "--save_checkpoint_path cannot be combined with --benchmark or --mode inference. Remove one of these "
                "options."
            )
        if self.load_checkpoint_path and self.benchmark and self.mode == TRAIN:
            raise ConfigError(
                "--load_checkpoint_path cannot be combined with --benchmark when training. Remove one of them."
            )
        if self.random_weights and (self.mode != INFERENCE or self.load_checkpoint_path):
            raise ConfigError(
                "--random_weights requires --mode inference and cannot be combined with --load_checkpoint_path."
            )

    def _require(self, name: str, is_valid: bool, expected: str) -> None:
        check_choice(self, name, is_valid, expected, prefix="--")

    @property
    def log_path(self) -> Path:
        return self.results_dir / self.log_filename

    def train_config(self, spec: FeatureSpec, precision: str) -> TrainConfig:
        """Convert these parameters to a training config. Features that NVIDIA's SIM lacks are disabled."""
        config = TrainConfig(model=model_named(self.model_type)(), weight_averaging=False, early_stopping_patience=0)
        taken = config.to_dict().keys() - {"model"}
        choices = {ours: getattr(self, theirs) for ours, theirs in PARAMETERS.items()}
        choices |= {"dropout": max(self.dropout_rate, 0.0), "precision": precision, "linear_terms": False}
        if "short_history" in taken:
            choices["short_history"] = self._short_history(spec)
        return config.with_choices(**{name: value for name, value in choices.items() if name in taken})

    def _short_history(self, spec: FeatureSpec) -> int:
        longest = max((feature.max_length or 0 for feature in spec.channel(HISTORY)), default=0)
        if longest <= self.long_seq_length:
            raise ConfigError(
                f"--long_seq_length is {self.long_seq_length}, but histories have at most {longest} items, so the "
                f"short history would be empty. Pass {longest - 1} or less."
            )
        return longest - self.long_seq_length


_SOCKET, _CORE = ("socket",), ("single", "single_unique")
MODES = ("disabled", *_SOCKET, *_CORE, "socket_unique_interleaved", "socket_unique_continuous")


def cpus_of(mode: str, cpus: Sequence[Cpu]) -> set[int]:
    if mode not in MODES:
        raise ConfigError(f"--affinity is {mode!r}. Available: {', '.join(MODES)}.")
    first = min(cpus)
    if mode in _SOCKET:
        return {cpu.number for cpu in cpus if cpu.socket == first.socket}
    if mode in _CORE:
        return {cpu.number for cpu in cores_of(cpus)[0]}
    return {cpu.number for cpu in cpus}


def set_affinity(mode: str) -> None:
    """Set the CPU affinity of this thread and its child threads. Call this before a framework starts threads."""
    os.sched_setaffinity(0, cpus_of(mode, allowed_cpus()))
