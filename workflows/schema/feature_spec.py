"""The data contract: the columns of a prepared dataset, their contents and their roles.

Loaders, models, exporters and clients are built from a `FeatureSpec`, never from literal column names. On disk it is
`feature_spec.yaml` in the layout of NVIDIA's DeepLearningExamples, read and written by
`rankline.workflows.schema.spec_file`. A channel groups columns by their role. A split is one chunk with all columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, combinations
from pathlib import Path
from typing import Any

from rankline.workflows.core.errors import SpecError
from rankline.workflows.core.validation import validated
from rankline.workflows.schema.spec_file import FILE_NAME as FILE_NAME
from rankline.workflows.schema.spec_file import PARQUET as PARQUET
from rankline.workflows.schema.spec_file import TFRECORD as TFRECORD
from rankline.workflows.schema.spec_file import Chunk, SpecFile
from rankline.workflows.schema.spec_file import Feature as Feature
from rankline.workflows.schema.targets import Head, usual_heads


@dataclass(frozen=True, kw_only=True)
class SpecMetadata:
    """Metadata on how a dataset was prepared and how to use it."""

    dataset: str | None = None  # name of the dataset
    inputs: tuple[str, ...] = ()  # raw columns of a serving request
    group_by: str | None = None  # raw column that defines the groups (users), if any; GAUC needs it among the inputs
    item: str | None = None  # input column of item ids, which the catalog lists, if any
    candidates: tuple[str, ...] = ()  # inputs that may have several values per row, which share the other columns
    history: str | None = None  # input column with the items that a user chose before, if rows have histories
    negatives: int | None = None  # number of negative training rows per positive row, if rows have histories
    online: bool = False  # whether splits have raw rows, as earlier versions wrote; `PreparedData.load` rejects them
    best_auc: float | None = None  # the highest AUC that any model can reach, if known
    heads: tuple[Head, ...] = ()  # tasks of the labels, in channel order; empty for one binary head per label
    others: Mapping[str, Any] = field(default_factory=dict)  # any other entries of the file, kept unchanged

    @classmethod
    def from_entries(cls, entries: Mapping[str, Any]) -> "SpecMetadata":
        known = {name: value for name, value in entries.items() if name in _KNOWN and value is not None}
        others = {name: value for name, value in entries.items() if name not in _KNOWN}
        heads = known.pop("heads", None) or []
        if not isinstance(heads, list):
            raise SpecError(f"metadata.heads is {heads!r}, expected a list of heads.")
        return replace(validated(cls, known, "metadata"), heads=tuple(map(Head.from_entry, heads)), others=others)

    def entries(self) -> dict[str, Any]:
        """Return the metadata as built-in types for a YAML file, excluding empty entries."""
        given = {name: getattr(self, name) for name in _KNOWN if name != "heads"}
        known = {name: list(v) if isinstance(v, tuple) else v for name, v in given.items()}
        if self.heads:
            known["heads"] = [head.entry() for head in self.heads]
        return {name: value for name, value in known.items() if value not in (None, False, [])} | dict(self.others)


_KNOWN = tuple(entry.name for entry in fields(SpecMetadata) if entry.name != "others")


NULL_ID, FIRST_UNSEEN_ID = 1, 2
"""Ids that NVTabular's `Categorify` reserves, besides 0 for padding. The vocabulary follows them, by frequency. Unseen
values have several ids if they are hashed to buckets.
"""
CATEGORICAL = "categorical"
CONTINUOUS = "continuous"
LABEL = "label"
USERS = "user_features"
TARGET = "target_item_features"
HISTORY = "positive_history"
NEGATIVES = "negative_history"
SEQUENCE_CHANNELS = (USERS, TARGET, HISTORY, NEGATIVES)
"""Channels of ids in data with histories, as in NVIDIA's SIM: the user, the item to score, the items that the user
chose before, and, for training only, an equal number of items that the user did not choose. The last three contain the
same item features in the same order and share embedding tables.
"""
TARGET_SUFFIX, HISTORY_SUFFIX, NEGATIVES_SUFFIX = "_trgt", "_pos", "_neg"
"""Suffixes of an item feature's columns in these channels."""
SOURCE_TYPES = (PARQUET, TFRECORD)
"""File formats that loaders read."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A fraction of a split's rows, taken from the whole split or from each row group."""

    begin: float  # the part as fractions of the rows, in row order
    end: float
    of_each_group: bool  # fractions of each row group: every part has the same mix even if files are sorted

    def cut(self, group_rows: Sequence[int]) -> list[tuple[int, int]]:
        """Return the half-open range of rows to read from each row group."""
        ends = list(accumulate(group_rows))
        groups = [(end - rows, end) for end, rows in zip(ends, group_rows, strict=True)]
        if self.of_each_group:  # rounding cumulative ends keeps the total right even for small groups
            begins, lasts = (
                [round(share * end) - round(share * begin) for begin, end in groups] for share in (self.begin, self.end)
            )
        else:
            begins, lasts = (
                [min(max(round(share * ends[-1]) - begin, 0), end - begin) for begin, end in groups]
                for share in (self.begin, self.end)
            )
        return list(zip(begins, lasts, strict=True))


@dataclass(frozen=True, kw_only=True)
class Source:
    """The files of one split, with paths relative to the directory of the spec."""

    files: tuple[str, ...]  # POSIX paths, in row order
    num_rows: int  # total number of rows
    type: str = PARQUET  # the file format; one of `SOURCE_TYPES`
    part: Part | None = None  # the part of the rows to read; None for all. It is never written to disk

    def __post_init__(self) -> None:
        if self.type not in SOURCE_TYPES:
            raise SpecError(f"unknown source type {self.type!r}. Available: {', '.join(SOURCE_TYPES)}.")


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """Columns, channels and sources of one prepared dataset."""

    features: tuple[Feature, ...]  # the columns, in file order
    channels: Mapping[str, tuple[str, ...]]  # channel → column names; see `SEQUENCE_CHANNELS`
    sources: Mapping[str, Source] = field(default_factory=dict)  # split ("train", "valid", …) → files
    metadata: SpecMetadata = field(default_factory=SpecMetadata)  # how the data was prepared and how to use it

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.features]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SpecError(f"feature_spec lists {twice} more than once.")
        for channel, members in self.channels.items():
            if unknown := [name for name in members if name not in names]:
                raise SpecError(
                    f"channel {channel!r} lists {unknown}, which feature_spec does not define. Available: {names}."
                )
        for feature in self.categorical:
            _ = feature.embedding_shape
        self._check_roles()
        self._check_sequences()
        if not self.channel(LABEL):
            raise SpecError("channel 'label' is empty, expected at least one label column.")
        if (named := [head.column for head in self.heads]) != list(self.channels[LABEL]):
            raise SpecError(f"metadata.heads lists {named}, but channel 'label' lists {list(self.channels[LABEL])}.")

    def __getitem__(self, name: str) -> Feature:
        for feature in self.features:
            if feature.name == name:
                return feature
        raise SpecError(f"unknown feature {name!r}. Available: {[feature.name for feature in self.features]}.")

    def channel(self, name: str) -> tuple[Feature, ...]:
        """Return the features of a channel in order; empty if the spec does not have the channel."""
        return tuple(self[member] for member in self.channels.get(name, ()))

    def _check_roles(self) -> None:
        roles = {"ids": self.categorical, CONTINUOUS: self.continuous, LABEL: self.labels}
        for (one, some), (other, others) in combinations(roles.items(), 2):
            if both := [feature.name for feature in some if feature in others]:
                raise SpecError(f"{both} are in channels for both {one} and {other}, expected one role per column.")

    def _check_sequences(self) -> None:
        """Check that histories and negatives have the same item features as the target."""
        for channel, is_list in ((USERS, False), (TARGET, False), (HISTORY, True), (NEGATIVES, True)):
            if wrong := [feature.name for feature in self.channel(channel) if feature.is_list != is_list]:
                raise SpecError(
                    f"channel {channel!r}: {wrong} are {'single values' if is_list else 'lists'}, "
                    f"expected {'lists' if is_list else 'single values'}."
                )
        items = self.channel(TARGET)
        for channel in (HISTORY, NEGATIVES):
            listed = self.channel(channel)
            if not listed and (channel == NEGATIVES or not items):
                continue
            sizes = [[feature.cardinality for feature in features] for features in (items, listed)]
            if sizes[0] != sizes[1]:
                raise SpecError(
                    f"channels {TARGET!r} and {channel!r} have features with {sizes[0]} and {sizes[1]} ids, expected "
                    "the same features in the same order because they share embedding tables."
                )
            stems = [[feature.name.rpartition("_")[0] for feature in features] for features in (items, listed)]
            if stems[0] != stems[1] and sorted(stems[0]) == sorted(stems[1]):
                raise SpecError(
                    f"channels {TARGET!r} and {channel!r} list their features in different orders: {stems[0]} and "
                    f"{stems[1]}. Use the same order in both, as they share embedding tables."
                )

    @property
    def categorical(self) -> tuple[Feature, ...]:
        return tuple(feature for name in (CATEGORICAL, *SEQUENCE_CHANNELS) for feature in self.channel(name))

    @property
    def is_sequential(self) -> bool:
        """Whether rows contain a history of items and an item to score."""
        return bool(self.channels.get(TARGET))

    @property
    def for_scoring(self) -> "FeatureSpec":
        """The spec without negative histories, which only training uses."""
        if not self.channels.get(NEGATIVES):
            return self
        dropped = set(self.channels[NEGATIVES])
        return replace(
            self,
            features=tuple(feature for feature in self.features if feature.name not in dropped),
            channels={channel: members for channel, members in self.channels.items() if channel != NEGATIVES},
        )

    @property
    def continuous(self) -> tuple[Feature, ...]:
        return self.channel(CONTINUOUS)

    @property
    def model_dtypes(self) -> dict[str, str]:
        """The NumPy dtype name that models expect for each input column, regardless of the dtype in the files."""
        ids, numbers = ([feature.name for feature in features] for features in (self.categorical, self.continuous))
        return dict.fromkeys(ids, "int64") | dict.fromkeys(numbers, "float32")

    @property
    def labels(self) -> tuple[Feature, ...]:
        """The labels to train on, in the order of `heads`."""
        return self.channel(LABEL)

    @property
    def label(self) -> Feature:
        """The first label; most datasets have only one."""
        return self.labels[0]

    @property
    def heads(self) -> tuple[Head, ...]:
        return self.metadata.heads or usual_heads(self.channels[LABEL])

    def source(self, split: str) -> Source:
        if split not in self.sources:
            raise SpecError(f"unknown split {split!r} in source_spec. Available: {sorted(self.sources)}.")
        return self.sources[split]

    def to_yaml(self) -> str:
        names = tuple(feature.name for feature in self.features)
        return SpecFile(
            features=self.features,
            channels=self.channels,
            mappings={
                split: (Chunk(type=source.type, features=names, files=source.files, num_rows=source.num_rows),)
                for split, source in self.sources.items()
            },
            metadata=self.metadata.entries(),
        ).to_yaml()

    @classmethod
    def from_yaml(cls, text: str) -> "FeatureSpec":
        """Parse the text of `feature_spec.yaml`.

        Raises:
            SpecError: the text is not YAML, a part is missing, the contents contradict each other, or a split is not a
                single chunk with a row count in a format that loaders read.
        """
        return cls._of(SpecFile.from_yaml(text))

    @classmethod
    def read(cls, path: Path) -> "FeatureSpec":
        """Read a feature spec from a file, or from `feature_spec.yaml` in a directory."""
        path = path / FILE_NAME if path.is_dir() else path
        file = SpecFile.read(path)
        try:
            return cls._of(file)
        except SpecError as error:
            raise SpecError(f"{path}: {error}") from None

    @classmethod
    def _of(cls, file: SpecFile) -> "FeatureSpec":
        return cls(
            features=file.features,
            channels=file.channels,
            sources={split: _source(split, chunks) for split, chunks in file.mappings.items()},
            metadata=SpecMetadata.from_entries(file.metadata),
        )


def _source(split: str, chunks: tuple[Chunk, ...]) -> Source:
    """Convert a split's only chunk to a `Source`. Raise `SpecError` if there are several or loaders cannot read it."""
    chunk, place = chunks[0], f"source_spec.{split}"
    if len(chunks) > 1:
        odd = f"{place} has {len(chunks)} chunks"
    elif chunk.type not in SOURCE_TYPES:
        odd = f"{place}[0].type is {chunk.type!r}"
    elif chunk.num_rows is None:
        odd = f"{place}[0] lacks 'num_rows'"
    else:
        return Source(files=chunk.files, num_rows=chunk.num_rows, type=chunk.type)
    raise SpecError(
        f"{odd}, but loaders read only a single {' or '.join(SOURCE_TYPES)} chunk with num_rows. Import it as prepared "
        "data: rankline import RECIPE DIRECTORY"
    )
