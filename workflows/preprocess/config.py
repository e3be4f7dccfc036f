"""Options for `prepare` and its encodings. This module imports quickly, because the command line is built from it."""

import math
import re
from dataclasses import dataclass

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.validation import MAX_BUCKETS, MAX_PADDED_LENGTH, MAX_SEED, check_at_least


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Options for encoding ids. Options for specific kinds of data are in `rankline.workflows.preprocess`.

    Attributes:
        frequency_threshold: treat ids that occur less often as unseen; 0 keeps all ids.
        hash_buckets: number of ids that unseen values are hashed to; 0 maps all unseen values to one id.
    """

    frequency_threshold: int = 0
    hash_buckets: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "frequency_threshold")
        check_at_least(self, 0, "hash_buckets", maximum=MAX_BUCKETS)


_FORMS = re.compile(r"local(:[1-9]\d{0,4})?|(tcp|tls)://([^\s/:\[\]]+|\[[0-9a-fA-F:.]+\]):\d{1,5}")


@dataclass(frozen=True, kw_only=True)
class DaskConfig:
    """Options for the Dask cluster that prepares the data.

    Attributes:
        dask: scheduler to use, tcp://HOST:PORT or tls://HOST:PORT; "local" starts one worker per CPU of this machine,
            "local:N" starts N workers. Without this option, this process does the work.
        dask_memory: memory limit of each worker that "local" starts, such as 4GB; a worker spills to disk at 60 % of it
            and is restarted above 95 %. "auto" divides this machine's memory among the workers.
        dask_timeout_s: seconds to wait for a scheduler that does not respond or has no workers.
    """

    dask: str = ""
    dask_memory: str = "auto"
    dask_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.dask and not _FORMS.fullmatch(self.dask):
            raise ConfigError(f"dask is {self.dask!r}, expected tcp://HOST:PORT, tls://HOST:PORT, local or local:N.")
        if not re.fullmatch(r"auto|\d+(\.\d+)? ?([kMGT]i?)?B", self.dask_memory):
            raise ConfigError(f'dask_memory is {self.dask_memory!r}, expected a size such as "4GB", or "auto".')
        if self.dask_memory != "auto" and not self.is_local:
            raise ConfigError(
                f"dask_memory is {self.dask_memory!r}, but it applies to local workers only. Set the memory of "
                "other workers when starting them: dask worker --memory-limit 4GB."
            )
        if not 0 < self.dask_timeout_s < math.inf:
            raise ConfigError(f"dask_timeout_s is {self.dask_timeout_s}, expected a finite number above 0.")

    @property
    def is_local(self) -> bool:
        """Whether to start temporary workers on this machine."""
        return self.dask.startswith("local")

    @property
    def num_local(self) -> int | None:
        """Number of workers to start on this machine; None for one per CPU."""
        return int(self.dask.removeprefix("local:")) if self.dask.startswith("local:") else None


SPLITS = ("random", "time", "group")


@dataclass(frozen=True, kw_only=True)
class RowsConfig:
    """Options for splitting raw rows into training and validation rows.

    Attributes:
        split: "random" permutes the rows with `split_seed`; "time" validates on the latest rows; "group" keeps the rows
            of a group together and selects groups by hash.
        valid_share: share of the rows to validate on, in (0, 1); with few or large groups, the actual share may differ.
        split_seed: seed of the random split.
    """

    split: str = "random"
    valid_share: float = 0.2
    split_seed: int = 42

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ConfigError(f"split is {self.split!r}. Available: {', '.join(SPLITS)}.")
        if not 0 < self.valid_share < 1:
            raise ConfigError(f"valid_share is {self.valid_share}, expected a share between 0 and 1.")
        check_at_least(self, 0, "split_seed", maximum=MAX_SEED)


HOLDOUTS = ("last", "second-last")
ATTRIBUTES = ("none", "category", "all")
_MAX_NEGATIVES = 10_000  # each adds one row per positive row


@dataclass(frozen=True, kw_only=True)
class SequenceConfig:
    """Options for converting interactions to rows with histories. The defaults deliberately differ from the reference.

    The reference (NVIDIA's SIM for TensorFlow 2) uses `min_interactions` 20 and `own_items`: docs/reference/amazon.md.

    Attributes:
        min_interactions: exclude users with fewer interactions.
        max_history: maximum number of previous items per row; the latest are kept.
        min_history: minimum number of previous items; interactions with fewer give no row.
        negatives: number of negative training rows, with items that the user did not choose, per positive row. Scores
            are calibrated for one negative per positive, as in validation.
        negative_history: add as many unchosen items to each training row as its history has, for the auxiliary loss of
            DIEN and SIM.
        own_items: draw negatives from all items, including the user's own history, as the reference does.
        holdout: "last" validates on each user's last item and trains on all items before it; "second-last" ignores the
            last item and validates on the one before it, to tune options without using the last item.
        negative_seed: random seed for negatives.
        attributes: attributes of an item that the model sees in addition to its id: "none", "category", or "all" for
            brand, parent category and category, if the files have them.
    """

    min_interactions: int = 5
    max_history: int = 100
    min_history: int = 1
    negatives: int = 1
    negative_history: bool = True
    own_items: bool = False
    holdout: str = "last"
    negative_seed: int = 42
    attributes: str = "category"

    def __post_init__(self) -> None:
        check_at_least(self, 3, "min_interactions")
        check_at_least(self, 1, "max_history", "min_history", maximum=MAX_PADDED_LENGTH)
        check_at_least(self, 1, "negatives", maximum=_MAX_NEGATIVES)
        check_at_least(self, 0, "negative_seed", maximum=MAX_SEED)
        if self.max_history < self.min_history:
            raise ConfigError(f"max_history is {self.max_history}, expected at least min_history ({self.min_history}).")
        if self.holdout not in HOLDOUTS:
            raise ConfigError(f"holdout is {self.holdout!r}. Available: {', '.join(HOLDOUTS)}.")
        if self.attributes not in ATTRIBUTES:
            raise ConfigError(f"attributes is {self.attributes!r}. Available: {', '.join(ATTRIBUTES)}.")
