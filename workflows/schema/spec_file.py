"""Reading and writing of `feature_spec.yaml` in the model-independent layout of NVIDIA's DeepLearningExamples.

    feature_spec:  feature → dtype, cardinality, embedding_dim, dimensions: [longest list], null_fill
    source_spec:   mapping (train, valid, …) → list of chunks {type, features, files, num_rows}
    channel_spec:  channel → features
    metadata:      any other plain values

The chunks of a mapping contain different columns of the same rows. Their files are listed in row order, with paths
relative to the directory of the YAML file. `rankline import` accepts any such file;
`rankline.workflows.schema.feature_spec` adds what models need.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rankline.workflows.core.errors import SpecError
from rankline.workflows.core.validation import validated
from rankline.workflows.storage.safe_yaml import MAX_BYTES, compose
from rankline.workflows.storage.untrusted import read_regular

FILE_NAME = "feature_spec.yaml"
PARQUET = "parquet"
TFRECORD = "tfrecord"
CSV = "csv"
FILE_TYPES = (PARQUET, TFRECORD, CSV)

_MAX_ID = (1 << 63) - 1  # the largest int64
_WHOLE_DTYPES = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_DTYPES = ("bool", *_WHOLE_DTYPES, "float16", "float32", "float64")
_TORCH_DTYPES = {
    "torch.half": "float16",
    "torch.float": "float32",
    "torch.double": "float64",
    "torch.short": "int16",
    "torch.int": "int32",
    "torch.long": "int64",
}
"""PyTorch's dtype names that NumPy lacks or uses for another type."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A column described by a feature spec."""

    name: str
    dtype: str  # NumPy dtype name of a single value
    cardinality: int | None = None  # ids are in [0, cardinality); None if not an id. Files of others may not count id 0
    embedding_dim: int | None = None  # width of the embedding table by NVTabular's rule; None if not an id
    is_list: bool = False  # whether each row holds a list of values (multi-hot)
    max_length: int | None = None  # length of the longest list in the data; None if not a list
    null_fill: float | None = None  # value with which a loader replaces missing values; None to reject them

    def __post_init__(self) -> None:
        try:
            np.dtype(self.dtype)
        except TypeError:
            raise SpecError(f"feature {self.name!r}: dtype {self.dtype!r} is not a NumPy dtype name.") from None
        for name in ("cardinality", "embedding_dim", "max_length"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or not 1 <= value <= _MAX_ID):
                raise SpecError(f"feature {self.name!r}: {name} is {value!r}, expected a positive integer.")
        if self.is_list != (self.max_length is not None):
            raise SpecError(
                f"feature {self.name!r}: max_length is required for list features and not allowed for others."
            )

    @property
    def embedding_shape(self) -> tuple[int, int]:
        """Rows and columns of the embedding table.

        Raises:
            SpecError: the feature is not an id.
        """
        if self.cardinality is None or self.embedding_dim is None:
            raise SpecError(
                f"feature {self.name!r} has no cardinality or embedding_dim, so it cannot be embedded. Add both, "
                "or import the files as prepared data: rankline import RECIPE DIRECTORY"
            )
        return self.cardinality, self.embedding_dim


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A group of files that store some of the columns for every row of a mapping, such as the training split."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  (pydantic's interface)

    type: str  # one of `FILE_TYPES`
    features: tuple[str, ...]  # the columns. A CSV file has them in this order; other formats are read by name
    files: tuple[str, ...]  # POSIX paths, in row order
    num_rows: int | None = None  # total number of rows; None if unknown


@dataclass(frozen=True, kw_only=True)
class SpecFile:
    """The validated contents of a `feature_spec.yaml`.

    Raises:
        SpecError: parts contradict each other; the message names the place.
    """

    features: tuple[Feature, ...]  # the columns, in order
    mappings: Mapping[str, tuple[Chunk, ...]] = field(default_factory=dict)  # mapping → chunks
    channels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # channel → column names
    metadata: Mapping[str, Any] = field(default_factory=dict)  # plain values

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.features]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SpecError(f"feature_spec lists {twice} more than once.")
        for channel, members in self.channels.items():
            for number, name in enumerate(members):
                _check_known(name, names, f"channel_spec.{channel}[{number}]")
        for mapping, chunks in self.mappings.items():
            self._check_mapping(f"source_spec.{mapping}", chunks, names)

    def _check_mapping(self, place: str, chunks: tuple[Chunk, ...], names: list[str]) -> None:
        if not chunks:
            raise SpecError(f"{place} has no chunks, expected at least one.")
        owners: dict[str, int] = {}
        for number, chunk in enumerate(chunks):
            if chunk.type not in FILE_TYPES:
                raise SpecError(f"{place}[{number}].type is {chunk.type!r}. Available: {', '.join(FILE_TYPES)}.")
            if chunk.num_rows is not None and chunk.num_rows < 0:
                raise SpecError(f"{place}[{number}].num_rows is {chunk.num_rows}, expected a nonnegative integer.")
            for part in ("features", "files"):
                if not getattr(chunk, part):
                    raise SpecError(f"{place}[{number}].{part} is empty, expected at least one entry.")
            for name in chunk.features:
                _check_known(name, names, f"{place}[{number}].features")
                if name in owners:
                    raise SpecError(
                        f"{place}[{number}].features: {name!r} is already in chunk [{owners[name]}]. List each "
                        "feature in only one chunk."
                    )
                owners[name] = number
        if missing := [name for name in names if name not in owners]:
            raise SpecError(
                f"{place}: no chunk contains {missing}. Add them to the features of a chunk, or remove them."
            )
        counts = {chunk.num_rows for chunk in chunks} - {None}
        if len(counts) > 1:
            raise SpecError(f"{place}: its chunks have num_rows {sorted(counts)}, expected the same number in each.")  # type: ignore[type-var]

    def __getitem__(self, name: str) -> Feature:
        return next(feature for feature in self.features if feature.name == name)

    def to_yaml(self) -> str:
        document = {
            "feature_spec": {feature.name: _feature_entry(feature) for feature in self.features},
            "source_spec": {
                mapping: [_chunk_entry(chunk) for chunk in chunks] for mapping, chunks in self.mappings.items()
            },
            "channel_spec": {channel: list(members) for channel, members in self.channels.items()},
            "metadata": dict(self.metadata),
        }
        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)

    @classmethod
    def from_yaml(cls, text: str) -> "SpecFile":
        """Parse the text of `feature_spec.yaml`.

        Raises:
            SpecError: the text is not YAML, a part is missing or of the wrong type, or the contents contradict each
                other; the message names the line or the place.
        """
        try:
            node = compose(text)
            document = None if node is None else _Loader("").construct_document(node)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"line {mark.line + 1}: " if mark else ""
            raise SpecError(f"{where}invalid YAML: {getattr(error, 'problem', None) or error}.") from None
        except (ValueError, RecursionError) as error:  # invalid dates, or lists nested too deeply
            raise SpecError(f"invalid YAML: {error}.") from None
        if not isinstance(document, dict):
            raise SpecError(f"the file contains {document!r:.80}, expected a mapping.")
        metadata = document.pop("metadata", None) or {}  # may contain dates, which JSON cannot
        if not isinstance(metadata, dict):
            raise SpecError(f"metadata is {metadata!r:.80}, expected a mapping.")
        for part in (document, metadata):
            _check_keys(part, "the file")
        parts = validated(_Document, document, "")
        return cls(
            features=tuple(_feature(name, entry) for name, entry in (parts.feature_spec or {}).items()),
            channels=parts.channel_spec or {},
            mappings=parts.source_spec or {},
            metadata=metadata,
        )

    @classmethod
    def read(cls, path: Path) -> "SpecFile":
        """Read a feature spec file.

        Raises:
            SpecError: the file does not exist or is not a valid spec; the message contains the path.
        """
        try:
            return cls.from_yaml(read_regular(path, MAX_BYTES).decode())
        except FileNotFoundError:
            raise SpecError(f"{path} does not exist, expected a feature spec.") from None
        except OSError as error:
            raise SpecError(f"{path} cannot be read ({error.strerror}), expected a feature spec.") from None
        except UnicodeDecodeError as error:
            raise SpecError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).") from None
        except SpecError as error:
            raise SpecError(f"{path}: {error}") from None


class _Loader(yaml.SafeLoader):
    """A YAML loader that rejects duplicate keys instead of silently using the last one."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} appears twice", key.start_mark)
            seen.add((key.tag, key.value if isinstance(key, yaml.ScalarNode) else id(key)))
        return super().construct_mapping(node, deep)


def _check_known(name: str, names: list[str], place: str) -> None:
    if name not in names:
        raise SpecError(f"{place}: {name!r} is not in feature_spec. Available: {names}.")


def _feature_entry(feature: Feature) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "dtype": feature.dtype,
        "cardinality": feature.cardinality,
        "embedding_dim": feature.embedding_dim,
        "dimensions": [feature.max_length] if feature.is_list else None,
        "null_fill": feature.null_fill,
    }
    return {name: value for name, value in entry.items() if value is not None}


def _chunk_entry(chunk: Chunk) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": chunk.type, "features": list(chunk.features), "files": list(chunk.files)}
    return entry if chunk.num_rows is None else {**entry, "num_rows": chunk.num_rows}


@dataclass(frozen=True, kw_only=True)
class _FeatureEntry:
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    dtype: Any = None
    cardinality: int | None = None
    embedding_dim: int | None = None
    dimensions: tuple[int] | None = None
    null_fill: float | int | None = None


@dataclass(frozen=True, kw_only=True)
class _Document:
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    feature_spec: dict[str, _FeatureEntry] | None
    channel_spec: dict[str, tuple[str, ...]] | None
    source_spec: dict[str, tuple[Chunk, ...]] | None = None


def _feature(name: str, entry: _FeatureEntry) -> Feature:
    return Feature(
        name=name,
        dtype=_dtype_name(entry.dtype, f"feature_spec.{name}.dtype"),
        cardinality=entry.cardinality,
        embedding_dim=entry.embedding_dim,
        is_list=entry.dimensions is not None,
        max_length=entry.dimensions[0] if entry.dimensions else None,
        null_fill=entry.null_fill,
    )


def _check_keys(value: Any, place: str) -> None:
    """Check that all keys are strings, because JSON would convert other keys to strings."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise SpecError(f"{place} has the key {key!r}, which is not a string. Quote it.")
            _check_keys(inner, key)


def _dtype_name(text: Any, place: str) -> str:
    """Convert a dtype name in NumPy, PyTorch or TensorFlow notation to the NumPy name."""
    plain = _TORCH_DTYPES.get(str(text)) or re.sub(r"^(torch|tf|np|numpy)\.", "", str(text))
    try:
        name = np.dtype(plain).name
    except (TypeError, ValueError, SyntaxError):
        name = ""
    if text is None or name not in _DTYPES:
        raise SpecError(f"{place} is {text!r}, expected a numeric type such as int64, torch.int8, tf.float32 or bool.")
    return name
