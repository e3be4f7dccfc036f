"""The choices of a training run. Importing this file imports no framework."""

import math
from dataclasses import dataclass, replace

from workflows.choices import check_at_least, check_choice
from workflows.errors import ConfigError

DECAYS = ("none", "linear", "quadratic", "cosine")
PRECISIONS = ("float32", "float16", "bfloat16")
SEARCHES = ("soft", "hard")
PROFILES = ("corrected", "reference")
RATE_SCALES = ("none", "linear", "sqrt")
COMPRESSIONS = ("none", "fp16")
ROWWISE_TABLE_LR_SCALE = 320.0
"""What `table_lr_scale` is for "rowwise_adagrad" unless it is given: its accumulators shrink the steps."""
LAG_FACTOR = 10
"""Times `WorkersConfig.timeout_s`, for a worker that answers, but lags."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Choices about the network and how it is fitted. The defaults are a good MLP for MovieLens.

    Attributes:
        model: architecture; a key of `training.models.MODELS`.
        hidden: units of the dense layers.
        numbers_hidden: units of the dense layers that the numbers go through before they meet the embeddings (dlrm).
        cross_layers: number of cross layers (dcnv2).
        cross_rank: rank of their weight matrices; 0 takes full ones (dcnv2).
        stage_one_hidden: units of the dense layers behind the search over the long history (sim).
        aux_hidden: units of the dense layers of the auxiliary loss (dien, sim).
        aux_weight: weight of the auxiliary loss; 0 leaves it out, and negative histories with it (dien, sim).
        gru_units: units of the two recurrent layers over the short history (dien, sim).
        short_history: number of latest items that are the short history (dien, sim); those before are the long one.
        num_searched: number of items that the search over the long history keeps (sim).
        search: "soft" keeps the items that attention weighs most, "hard" the latest ones that share the item's last
            feature, such as its category (sim).
        profile: "corrected" follows the papers, "reference" NVIDIA's SIM for TensorFlow 2 (din, dien, sim).
        recency: let attention know how long ago an item was chosen, which the exact search of sim always does, and
            summarise the history by that too (din, dien, sim).
        likeness: add the dot products of the item and each summary of the history to the logit (din, dien, sim).
        user_embeddings: use the features of the user, and not of items only (din, dien, sim).
        embedding_dim: columns of every embedding table; 0 takes NVTabular's rule, up to `embedding_dim_cap`.
        embedding_dim_cap: no embedding table has more columns; the spec may say fewer.
        embedding_init: ids start uniform in ± this, the reserved ones (padding, null, unseen) at zero. 0 takes what
            the framework starts from: a truncated normal with deviation 1/√dimension in
            `tf.feature_column.embedding_column`, a normal with deviation 1 in `torch.nn.Embedding`.
        linear_terms: add one weight per id to the logit, beside the dense layers.
        linear_scale: factor of the linear terms; they learn that much faster.
        dropout: share of each dense layer's units that is dropped in training.
        embedding_dropout: share of the embeddings' columns that is dropped in training.
        l2_embedding: weight of the mean squared norm of the looked-up embeddings, added to the loss. It touches the
            rows of the batch only, so an id is held as much as its frequency asks for.
        l2_linear: as `l2_embedding`, for the linear terms.
        weight_decay: decoupled (AdamW), on all weights but embedding tables, which `l2_embedding` holds.
        optimizer: update rule; a key of `training.optimizers.OPTIMIZERS`, in PyTorch of
            `training.torch_optimizers.OPTIMIZERS`.
        learning_rate: at the start.
        learning_rate_decay: "none", or "linear", "quadratic" or "cosine" down to zero at the end of the last epoch.
        warmup_steps: steps in which the learning rate rises linearly from zero, before anything else.
        decay_start_step: step from which the learning rate decays; until then it stays as it is.
        table_lr_scale: multiplies the learning rate of embedding tables. None takes the optimizer's own: 1, but much
            more for "rowwise_adagrad", whose accumulators shrink its steps.
        precision: of activations and gradients: "float32", or "float16" (with loss scaling) or "bfloat16"; weights,
            losses and scores stay float32.
        xla: compile the dense part of the model, forward and backward, with XLA (TensorFlow only).
        weight_averaging: evaluate and export an average of the weights over the run, late ones counting more.
        batch_size: rows per step.
        epochs: passes over the training data, at most.
        early_stopping_patience: stop after so many epochs without a better validation AUC, and keep the best one; 0
            trains all epochs and keeps the last.
        seed: of the initial weights, the order of rows, and dropout.
    """

    model: str = "mlp"
    hidden: tuple[int, ...] = (128, 128, 128)
    numbers_hidden: tuple[int, ...] = ()
    cross_layers: int = 3
    cross_rank: int = 0
    stage_one_hidden: tuple[int, ...] = (200,)
    aux_hidden: tuple[int, ...] = (100, 50)
    aux_weight: float = 1.0
    gru_units: int = 96
    short_history: int = 10
    num_searched: int = 50
    search: str = "soft"
    profile: str = "corrected"
    recency: bool = False
    likeness: bool = False
    user_embeddings: bool = True
    embedding_dim: int = 0
    embedding_dim_cap: int = 32
    embedding_init: float = 0.05
    linear_terms: bool = True
    linear_scale: float = 1.0
    dropout: float = 0.0
    embedding_dropout: float = 0.0
    l2_embedding: float = 0.0
    l2_linear: float = 0.0
    weight_decay: float = 0.0
    optimizer: str = "rowwise_adagrad"
    learning_rate: float = 1e-3
    learning_rate_decay: str = "none"
    warmup_steps: int = 0
    decay_start_step: int = 0
    table_lr_scale: float | None = None
    precision: str = "float32"
    xla: bool = False
    weight_averaging: bool = True
    batch_size: int = 1024
    epochs: int = 4
    early_stopping_patience: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 1, "cross_layers", "gru_units", "short_history", "num_searched")
        check_at_least(self, 1, "embedding_dim_cap", "batch_size", "epochs")
        check_at_least(self, 0, "cross_rank", "embedding_dim", "warmup_steps", "decay_start_step")
        check_at_least(self, 0, "early_stopping_patience", "seed")
        for name in ("learning_rate", "table_lr_scale", "linear_scale"):
            value = getattr(self, name)
            check_choice(self, name, value is None or 0 < value < math.inf, "a finite number above 0")
        for name in ("aux_weight", "embedding_init", "l2_embedding", "l2_linear", "weight_decay"):
            check_choice(self, name, 0 <= getattr(self, name) < math.inf, "a finite number of at least 0")
        for name in ("dropout", "embedding_dropout"):
            check_choice(self, name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        for name in ("hidden", "numbers_hidden", "stage_one_hidden", "aux_hidden"):
            check_choice(self, name, all(units >= 1 for units in getattr(self, name)), "whole numbers of at least 1")
        check_choice(self, "learning_rate_decay", self.learning_rate_decay in DECAYS, " or ".join(DECAYS))
        check_choice(self, "precision", self.precision in PRECISIONS, " or ".join(PRECISIONS))
        check_choice(self, "search", self.search in SEARCHES, " or ".join(SEARCHES))
        check_choice(self, "profile", self.profile in PROFILES, " or ".join(PROFILES))


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """How a run is carried out. Nothing here changes what is learnt.

    Attributes:
        checkpoint_every: steps between checkpoints, of which the last one is kept; 0 writes none.
        resume: go on from the checkpoint of a run that was interrupted.
        tensorboard: write losses, metrics and throughput for TensorBoard, beside the model.
        evaluate_train: after each epoch, measure the training rows as well as the validation rows.
        deterministic: let TensorFlow use kernels only that give the same bits in each run, on any device; slower.
        profile_steps: first and last step that TensorBoard's profiler records, e.g. 90,100; implies `tensorboard`.
    """

    checkpoint_every: int = 0
    resume: bool = False
    tensorboard: bool = False
    evaluate_train: bool = False
    deterministic: bool = False
    profile_steps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_at_least(self, 0, "checkpoint_every")
        if self.profile_steps and not (
            len(self.profile_steps) == 2 and 1 <= self.profile_steps[0] <= self.profile_steps[1]
        ):
            raise ConfigError(
                f"profile_steps is {self.profile_steps}, expected two steps of which the first is not later: 90,100."
            )


@dataclass(frozen=True, kw_only=True)
class WorkersConfig:
    """How several processes train one model together.

    Attributes:
        workers: processes that train; each reads its share of the rows.
        min_workers: fewest that an elastic run goes on with; 0 for a run that ends when a worker dies.
        max_workers: most that an elastic run takes in; 0 for a run that ends when a worker dies.
        global_batch_size: rows per step of all workers together, which must divide it; 0 for `batch_size` rows each.
        scale_learning_rate: "linear" multiplies the learning rate by the rows per step of all workers over
            `batch_size`, "sqrt" by the root of that; best with `warmup_steps`. "none" leaves it.
        compression: "fp16" sends halves in place of float32: of tables, and of weights of some size.
        commit_every: steps between two checkpoints of an elastic run, unless checkpoint_every says; what came after the
            last one is lost with a worker.
        split_tables_share: tables that take more than this share of a worker's memory are split over the workers; 0
            splits none.
        timeout_s: seconds to wait for a worker that does not answer. One that answers, but lags, has ten times as
            long.
    """

    workers: int = 1
    min_workers: int = 0
    max_workers: int = 0
    global_batch_size: int = 0
    scale_learning_rate: str = "none"
    compression: str = "none"
    commit_every: int = 500
    split_tables_share: float = 0.0
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        check_at_least(self, 1, "workers", "commit_every")
        check_at_least(self, 0, "min_workers", "max_workers", "global_batch_size")
        check_choice(self, "scale_learning_rate", self.scale_learning_rate in RATE_SCALES, " or ".join(RATE_SCALES))
        check_choice(self, "compression", self.compression in COMPRESSIONS, " or ".join(COMPRESSIONS))
        check_choice(self, "split_tables_share", 0 <= self.split_tables_share < 1, "at least 0 and below 1")
        check_choice(self, "timeout_s", 1 <= self.timeout_s < math.inf, "a finite number of at least 1")
        if (self.min_workers or self.max_workers) and not 1 <= self.min_workers <= self.workers <= self.max_workers:
            raise ConfigError(
                f"min_workers is {self.min_workers}, workers {self.workers}, max_workers {self.max_workers}: expected "
                "1 ≤ min_workers ≤ workers ≤ max_workers, or 0 for both to end a run with its first worker that dies."
            )

    @property
    def is_elastic(self) -> bool:
        """Whether the run goes on without a worker that dies."""
        return self.max_workers > 0

    def of_world(self, config: TrainConfig, size: int) -> TrainConfig:
        """The choices of the whole run of `size` workers, of which `config` has those of one.

        Returns:
            Its `batch_size` is the rows per step of all workers, and its learning rate is scaled.

        Raises:
            ConfigError: the workers do not divide the global batch.
        """
        batch_size = self.global_batch_size or config.batch_size * size
        if batch_size % size:
            raise ConfigError(
                f"global_batch_size is {batch_size}, which {size} workers do not divide. Take "
                f"{max(batch_size // size, 1) * size}."
            )
        growth = batch_size / config.batch_size
        factor = {"none": 1.0, "linear": growth, "sqrt": math.sqrt(growth)}[self.scale_learning_rate]
        return replace(config, batch_size=batch_size, learning_rate=config.learning_rate * factor)
