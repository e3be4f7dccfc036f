"""The one data contract: which columns there are, what they hold, and what each is for.

Loaders, models, exporters and clients are built from a `FeatureSpec`, never from literal column names. On disk it is
`feature_spec.yaml` with the four parts that NVIDIA's DeepLearningExamples introduced for SIM and DLRM:

    feature_spec:  column → dtype, cardinality, embedding size, list or not
    source_spec:   split → files and row count
    channel_spec:  channel → columns; a channel is what a model does with them
    metadata:      anything else worth keeping, plain values
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from workflows.errors import SpecError

CATEGORICAL = "categorical"
CONTINUOUS = "continuous"
LABEL = "label"
FILE_NAME = "feature_spec.yaml"
PARQUET = "parquet"
TFRECORD = "tfrecord"
SOURCE_TYPES = (PARQUET, TFRECORD)


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One column of the prepared data.

    Attributes:
        name: column name.
        dtype: NumPy dtype name of a single value.
        cardinality: number of ids, reserved ones included, so that every id is in [0, cardinality); None if not an id.
        embedding_dim: columns of the embedding table by NVTabular's rule; None if not an id.
        is_list: each row holds a list of values (multi-hot).
        max_length: longest list seen; None if not a list.
        null_fill: what a loader puts where the data has nothing; None refuses missing values.
    """

    name: str
    dtype: str
    cardinality: int | None = None
    embedding_dim: int | None = None
    is_list: bool = False
    max_length: int | None = None
    null_fill: float | None = None

    def __post_init__(self) -> None:
        try:
            np.dtype(self.dtype)
        except TypeError:
            raise SpecError(f"feature {self.name!r}: dtype {self.dtype!r} is not a NumPy dtype name.") from None
        for name in ("cardinality", "embedding_dim"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise SpecError(f"feature {self.name!r}: {name} is {value!r}, expected a whole number of at least 1.")
        if self.is_list != (self.max_length is not None):
            raise SpecError(f"feature {self.name!r}: max_length belongs to list features, and every list needs one.")

    @property
    def embedding_shape(self) -> tuple[int, int]:
        """Rows and columns of the embedding table.

        Raises:
            SpecError: the feature is not an id.
        """
        if self.cardinality is None or self.embedding_dim is None:
            raise SpecError(f"feature {self.name!r} has no cardinality and embedding_dim, so it cannot be embedded.")
        return self.cardinality, self.embedding_dim


@dataclass(frozen=True, kw_only=True)
class Source:
    """The files of one split, relative to the spec's own directory.

    Attributes:
        files: POSIX paths, in the order of the rows.
        num_rows: rows of all of them.
        type: their format; one of `SOURCE_TYPES`.
    """

    files: tuple[str, ...]
    num_rows: int
    type: str = PARQUET

    def __post_init__(self) -> None:
        if self.type not in SOURCE_TYPES:
            raise SpecError(f"a source is of type {self.type!r}. Available: {', '.join(SOURCE_TYPES)}.")


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """Columns, channels and sources of one prepared dataset.

    Attributes:
        features: the columns, in file order.
        channels: channel → column names. `categorical`, `continuous` and `label` are the ones every model knows.
        sources: split ("train", "valid", …) → files.
        metadata: plain values that describe the dataset.
    """

    features: tuple[Feature, ...]
    channels: Mapping[str, tuple[str, ...]]
    sources: Mapping[str, Source] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.features]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SpecError(f"feature_spec names {twice} more than once.")
        for channel, members in self.channels.items():
            if unknown := [name for name in members if name not in names]:
                raise SpecError(f"channel {channel!r} holds {unknown}, which feature_spec lacks. Available: {names}.")
        for feature in self.channel(CATEGORICAL):
            _ = feature.embedding_shape
        if not self.channel(LABEL):
            raise SpecError("channel 'label' is empty: a model needs at least one label column.")

    def __getitem__(self, name: str) -> Feature:
        """The feature called `name`.

        Raises:
            SpecError: there is none.
        """
        for feature in self.features:
            if feature.name == name:
                return feature
        raise SpecError(f"no feature {name!r}. Available: {[feature.name for feature in self.features]}.")

    def channel(self, name: str) -> tuple[Feature, ...]:
        """The features of a channel in its order; empty when the spec does not have the channel."""
        return tuple(self[member] for member in self.channels.get(name, ()))

    @property
    def categorical(self) -> tuple[Feature, ...]:
        """Features that are looked up in embedding tables."""
        return self.channel(CATEGORICAL)

    @property
    def continuous(self) -> tuple[Feature, ...]:
        """Features that enter the model as numbers."""
        return self.channel(CONTINUOUS)

    @property
    def model_dtypes(self) -> dict[str, str]:
        """Input column → NumPy dtype name of its values as models take them, whatever the files hold."""
        ids, numbers = ([feature.name for feature in features] for features in (self.categorical, self.continuous))
        return dict.fromkeys(ids, "int64") | dict.fromkeys(numbers, "float32")

    @property
    def label(self) -> Feature:
        """The first label, the one that is trained on."""
        return self.channel(LABEL)[0]

    def source(self, split: str) -> Source:
        """The files of a split.

        Raises:
            SpecError: the spec has no such split.
        """
        if split not in self.sources:
            raise SpecError(f"source_spec has no split {split!r}. Available: {sorted(self.sources)}.")
        return self.sources[split]

    def to_yaml(self) -> str:
        """Render as the text of `feature_spec.yaml`."""
        document = {
            "feature_spec": {f.name: _feature_to_dict(f) for f in self.features},
            "source_spec": {
                split: {"type": source.type, "num_rows": source.num_rows, "files": list(source.files)}
                for split, source in self.sources.items()
            },
            "channel_spec": {channel: list(members) for channel, members in self.channels.items()},
            "metadata": dict(self.metadata),
        }
        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)

    @classmethod
    def from_yaml(cls, text: str) -> "FeatureSpec":
        """Parse the text of `feature_spec.yaml`.

        Raises:
            SpecError: not YAML, a part is missing, or the contents contradict each other.
        """
        try:
            document = yaml.safe_load(text)
            return cls(
                features=tuple(Feature(name=n, **entry) for n, entry in document["feature_spec"].items()),
                channels={channel: tuple(members) for channel, members in document["channel_spec"].items()},
                sources={
                    split: Source(files=tuple(s["files"]), num_rows=s["num_rows"], type=s["type"])
                    for split, s in document.get("source_spec", {}).items()
                },
                metadata=document.get("metadata", {}),
            )
        except KeyError as error:
            raise SpecError(f"feature spec lacks {error}. Expected feature_spec, source_spec, channel_spec.") from None
        except (yaml.YAMLError, TypeError, AttributeError) as error:
            raise SpecError(f"feature spec cannot be read: {error}") from None

    @classmethod
    def read(cls, path: Path) -> "FeatureSpec":
        """Read a feature spec file, or the one in a directory.

        Raises:
            SpecError: no such file, or not a valid spec.
        """
        path = path / FILE_NAME if path.is_dir() else path
        try:
            return cls.from_yaml(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SpecError(f"{path} does not exist. Expected the feature spec of prepared data.") from None
        except SpecError as error:
            raise SpecError(f"{path}: {error}") from None


def _feature_to_dict(feature: Feature) -> dict[str, Any]:
    entry: dict[str, Any] = {"dtype": feature.dtype}
    if feature.cardinality is not None:
        entry |= {"cardinality": feature.cardinality, "embedding_dim": feature.embedding_dim}
    if feature.is_list:
        entry |= {"is_list": True, "max_length": feature.max_length}
    if feature.null_fill is not None:
        entry["null_fill"] = feature.null_fill
    return entry
