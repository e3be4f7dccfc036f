"""`feature_spec.yaml` in the layout of NVIDIA's DeepLearningExamples, which says nothing about models.

    feature_spec:  feature → dtype, cardinality, embedding_dim, dimensions: [longest list], null_fill
    source_spec:   mapping (train, valid, …) → list of chunks {type, features, files, num_rows}
    channel_spec:  channel → features
    metadata:      anything else worth keeping, plain values

The chunks of a mapping hold different columns of the same rows. Their files lie in the order of the rows, and their
paths start from the directory of the YAML file. `rankline import` takes any such file;
`workflows.feature_spec` has what the models need of one.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from workflows.errors import SpecError
from workflows.regular_files import read_regular
from workflows.yaml_nodes import MOST_BYTES, compose

FILE_NAME = "feature_spec.yaml"
PARQUET = "parquet"
TFRECORD = "tfrecord"
CSV = "csv"
FILE_TYPES = (PARQUET, TFRECORD, CSV)

_MOST_ID = (1 << 63) - 1  # an int64
_PARTS = ("feature_spec", "source_spec", "channel_spec", "metadata")
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
"""PyTorch's own names, where NumPy has none or another meaning."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One column.

    Attributes:
        name: column name.
        dtype: NumPy dtype name of a single value.
        cardinality: number of ids, reserved ones included, so that every id is in [0, cardinality); None if not an id.
            In files that come from elsewhere it may leave out id 0, which is padding.
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
        for name in ("cardinality", "embedding_dim", "max_length"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or not 1 <= value <= _MOST_ID):
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
            raise SpecError(
                f"feature {self.name!r} has no cardinality and embedding_dim, so it cannot be embedded. Add them, or "
                "import the files as prepared data: rankline import RECIPE DIRECTORY"
            )
        return self.cardinality, self.embedding_dim


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some columns of all rows of a mapping.

    Attributes:
        type: one of `FILE_TYPES`.
        features: the columns; in a CSV file in this order, in others found by their names.
        files: POSIX paths, in the order of the rows.
        num_rows: rows of all files; None where nobody has counted them.
    """

    type: str
    features: tuple[str, ...]
    files: tuple[str, ...]
    num_rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class SpecFile:
    """What a `feature_spec.yaml` says, with nothing that contradicts itself.

    Attributes:
        features: the columns, in order.
        mappings: mapping → chunks.
        channels: channel → column names.
        metadata: plain values.

    Raises:
        SpecError: a part contradicts another; the message has the place.
    """

    features: tuple[Feature, ...]
    mappings: Mapping[str, tuple[Chunk, ...]] = field(default_factory=dict)
    channels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.features]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SpecError(f"feature_spec names {twice} more than once.")
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
            for part in ("features", "files"):
                if not getattr(chunk, part):
                    raise SpecError(f"{place}[{number}].{part} is empty, expected at least one.")
            for name in chunk.features:
                _check_known(name, names, f"{place}[{number}].features")
                if name in owners:
                    raise SpecError(
                        f"{place}[{number}].features: {name!r} is in chunk [{owners[name]}] already. "
                        "A feature is in one chunk of a mapping, once."
                    )
                owners[name] = number
        if missing := [name for name in names if name not in owners]:
            raise SpecError(f"{place}: no chunk holds {missing}. Add them to the features of one, or take them out.")
        counts = {chunk.num_rows for chunk in chunks} - {None}
        if len(counts) > 1:
            raise SpecError(f"{place}: its chunks say num_rows {sorted(counts)}, expected the same rows in each.")  # type: ignore[type-var]

    def __getitem__(self, name: str) -> Feature:
        """The feature called `name`, which must be there."""
        return next(feature for feature in self.features if feature.name == name)

    def to_yaml(self) -> str:
        """Render as the text of `feature_spec.yaml`."""
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
            SpecError: not YAML, a part is missing or of the wrong kind, or the contents contradict each other; the
                message has the line or the place.
        """
        try:
            node = compose(text)
            document = None if node is None else _Loader("").construct_document(node)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"line {mark.line + 1}: " if mark else ""
            raise SpecError(f"{where}not YAML: {getattr(error, 'problem', None) or error}.") from None
        except (ValueError, RecursionError) as error:  # a date that is none, lists in lists without end
            raise SpecError(f"not YAML: {error}.") from None
        parts = _entries(document, "the file", _PARTS)
        for name in ("feature_spec", "channel_spec"):
            if name not in parts:
                raise SpecError(f"the file lacks {name!r}. Expected feature_spec, source_spec and channel_spec.")
        features, channels = _entries(parts["feature_spec"], "feature_spec"), parts["channel_spec"]
        sources = _entries(parts.get("source_spec"), "source_spec")
        return cls(
            features=tuple(_feature(name, entry) for name, entry in features.items()),
            channels={
                channel: _texts(members, f"channel_spec.{channel}")
                for channel, members in _entries(channels, "channel_spec").items()
            },
            mappings={
                mapping: tuple(
                    _chunk(chunk, f"source_spec.{mapping}[{number}]")
                    for number, chunk in enumerate(_items(chunks, f"source_spec.{mapping}", "chunks"))
                )
                for mapping, chunks in sources.items()
            },
            metadata=_entries(parts.get("metadata"), "metadata"),
        )

    @classmethod
    def read(cls, path: Path) -> "SpecFile":
        """Read a feature spec file.

        Raises:
            SpecError: no such file, or not a valid spec; the message has the path.
        """
        try:
            return cls.from_yaml(read_regular(path, MOST_BYTES).decode())
        except FileNotFoundError:
            raise SpecError(f"{path} does not exist. Expected a feature spec.") from None
        except OSError as error:
            raise SpecError(f"{path} cannot be read ({error.strerror}). Expected a feature spec.") from None
        except UnicodeDecodeError as error:
            raise SpecError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).") from None
        except SpecError as error:
            raise SpecError(f"{path}: {error}") from None


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML would take the last."""

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


def _feature(name: str, entry: Any) -> Feature:
    place = f"feature_spec.{name}"
    given = _entries(entry, place, ("dtype", "cardinality", "embedding_dim", "dimensions", "null_fill"))
    dimensions = given.get("dimensions")
    if dimensions is not None and not (isinstance(dimensions, list) and list(map(type, dimensions)) == [int]):
        raise SpecError(f"{place}.dimensions is {dimensions!r}, expected [n]: the length of the longest list.")
    null_fill = given.get("null_fill")
    if null_fill is not None and type(null_fill) not in (int, float):
        raise SpecError(f"{place}.null_fill is {null_fill!r}, expected a number.")
    return Feature(
        name=name,
        dtype=_dtype_name(given.get("dtype"), f"{place}.dtype"),
        cardinality=given.get("cardinality"),
        embedding_dim=given.get("embedding_dim"),
        is_list=dimensions is not None,
        max_length=dimensions[0] if dimensions else None,
        null_fill=null_fill,
    )


def _dtype_name(text: Any, place: str) -> str:
    """NumPy's name of a dtype in its own words, PyTorch's or TensorFlow's."""
    plain = _TORCH_DTYPES.get(str(text)) or re.sub(r"^(torch|tf|np|numpy)\.", "", str(text))
    try:
        name = np.dtype(plain).name
    except (TypeError, ValueError, SyntaxError):
        name = ""
    if text is None or name not in _DTYPES:
        raise SpecError(f"{place} is {text!r}, expected a number type such as int64, torch.int8, tf.float32 or bool.")
    return name


def _chunk(entry: Any, place: str) -> Chunk:
    given = _entries(entry, place, ("type", "features", "files", "num_rows"))
    if missing := [name for name in ("type", "features", "files") if name not in given]:
        raise SpecError(f"{place} lacks {missing[0]!r}. Expected type, features and files.")
    num_rows = given.get("num_rows")
    if num_rows is not None and (type(num_rows) is not int or num_rows < 0):
        raise SpecError(f"{place}.num_rows is {num_rows!r}, expected a whole number.")
    return Chunk(
        type=given["type"],
        features=_texts(given["features"], f"{place}.features"),
        files=_texts(given["files"], f"{place}.files"),
        num_rows=num_rows,
    )


def _entries(value: Any, place: str, known: Iterable[str] | None = None) -> dict[str, Any]:
    """A YAML mapping with names as keys; nothing counts as an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SpecError(f"{place} is {_kind(value)}, expected names with their values.")
    for key in value:
        if not isinstance(key, str):
            raise SpecError(f"{place} has the key {key!r}, which is not text. Put it in quotes.")
        if known is not None and key not in known:
            raise SpecError(f"{place} has {key!r}, which is not known. Expected {', '.join(known)}.")
    return value


def _items(value: Any, place: str, of: str) -> list[Any]:
    if not isinstance(value, list):
        raise SpecError(f"{place} is {_kind(value)}, expected a list of {of}.")
    return value


def _texts(value: Any, place: str) -> tuple[str, ...]:
    for number, item in enumerate(_items(value, place, "names")):
        if not isinstance(item, str):
            raise SpecError(f"{place}[{number}] is {item!r}, which is not text. Put it in quotes.")
    return tuple(value)


def _kind(value: Any) -> str:
    kinds = {dict: "names with values", list: "a list", type(None): "empty"}
    return kinds.get(type(value), repr(value))
