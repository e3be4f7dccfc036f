"""What a recipe file says about its data. Light to import; the JSON schema for editors is made from these classes."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.suggestions import did_you_mean
from rankline.workflows.core.validation import LONGEST_PADDED, MOST, check_at_least
from rankline.workflows.nvt.kernels.categories import MOST_BUCKETS
from rankline.workflows.schema.tensor_names import NNZS, SCORE, VALID, VALUES

Type = Literal["string", "int", "float", "bool", "timestamp"]
Role = Literal["id", "categorical", "multihot", "text", "numeric", "vector", "timestamp", "history", "group", "ignored"]
Scale = Literal["standard", "log", "none"]
Part = Literal["year", "month", "day", "weekday", "hour", "minute", "day_of_year", "elapsed_days"]
Task = Literal["binary", "regression", "multiclass"]
Format = Literal["csv", "parquet", "jsonl"]
Quote = Literal["double", "none"]

CATEGORIES: tuple[Role, ...] = ("id", "categorical", "text")
LISTS: tuple[Role, ...] = ("multihot", "history", "vector")
ISO, EPOCHS = "iso", {"epoch_s": 1_000_000, "epoch_ms": 1_000, "epoch_us": 1}
"""Formats of times: ISO 8601, or whole numbers since 1970, by how many microseconds one of them is."""


@dataclass(frozen=True, kw_only=True)
class FilesConfig:
    """Which files hold the rows, and how they are written.

    Attributes:
        files: files, directories and patterns such as logs/*.csv, relative to the recipe file.
        format: of all files; without it, the ending of their names says.
        delimiter: between the cells of a CSV file.
        quote: of the cells of a CSV file. A cell in double quotes may contain delimiters and line ends; with none, a
            quote is an ordinary character.
        header: the first line of a CSV file has the names of its columns; else they are column_1, column_2 and so on.
        encoding: of the text of a CSV file.
        missing: texts that stand for a missing number, time or label in a CSV file; of texts, only the empty one does.
    """

    files: tuple[str, ...]
    format: Format | None = None
    delimiter: str = ","
    quote: Quote = "double"
    header: bool = True
    encoding: str = "utf-8"
    missing: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        if not self.files:
            raise ConfigError("files is empty, expected at least one file, directory or pattern.")
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n\0':
            raise ConfigError(f"delimiter is {self.delimiter!r}, expected one ASCII character, no quote or line end.")


@dataclass(frozen=True, kw_only=True)
class ColumnConfig:
    """What a column holds, and what it is for.

    Attributes:
        type: of its values, or of the values of its lists.
        role: what it is for. id, categorical and text become ids of a vocabulary; multihot and history are lists of
            such; numeric is scaled, and a vector is a list of numbers of one length; of a timestamp, `parts` are taken;
            group names rows that belong together and is no feature; ignored is not read.
        format: of a timestamp that is text or a number: "iso", "epoch_s", "epoch_ms", "epoch_us", or as strptime has
            it, such as "%d/%m/%Y %H:%M".
        parts: of a timestamp, what the model sees; the last two as numbers, the others as categories.
        separator: between the values of a list in a CSV file.
        length: of a vector, how many numbers it has.
        scale: of a numeric column or vector: standard has mean 0 and deviation 1; log is standard after log(1 + x), for
            counts and amounts; none leaves it.
        of: of a history, the column whose ids it lists.
        max_length: of a list, how many of its last values are kept; 0 keeps all.
        frequency_threshold: as in `prepare`, for this column.
        hash_buckets: as in `prepare`, for this column.
    """

    type: Type = "string"
    role: Role = "categorical"
    format: str = ISO
    parts: tuple[Part, ...] = ()
    separator: str = "|"
    length: int = 0
    scale: Scale = "standard"
    of: str | None = None
    max_length: int = 0
    frequency_threshold: int | None = None
    hash_buckets: int | None = None

    def __post_init__(self) -> None:
        check_at_least(self, 0, "max_length", most=LONGEST_PADDED)
        check_at_least(self, 0, "length", most=LONGEST_PADDED)
        for name, most in (("frequency_threshold", MOST), ("hash_buckets", MOST_BUCKETS)):
            if getattr(self, name) is not None:
                check_at_least(self, 0, name, most=most)
        if self.role in ("numeric", "vector") and self.type not in ("int", "float", "bool"):
            raise ConfigError(
                f"role {self.role} has type {self.type}, expected int, float or bool. Choose another role."
            )
        if (self.role == "vector") != (self.length > 0):
            raise ConfigError(
                f"role {self.role} has length {self.length}. Set 'length', how many numbers each vector has, for role "
                "vector and no other."
            )
        if (self.role == "timestamp") != (self.type == "timestamp") and self.role not in ("ignored", "group"):
            raise ConfigError(f"role {self.role} has type {self.type}: a timestamp has both, as role and as type.")
        if self.role == "timestamp" and not self.parts:
            raise ConfigError("role timestamp has no parts, so the model sees nothing of it. Name some, or ignore it.")
        if (self.role == "history") != (self.of is not None):
            raise ConfigError("role history and 'of' go together: 'of' names the column whose ids it lists.")

    @property
    def is_list(self) -> bool:
        return self.role in LISTS

    @property
    def is_feature(self) -> bool:
        """The model sees it, so a request has it."""
        return self.role not in ("group", "ignored")


@dataclass(frozen=True, kw_only=True)
class LabelConfig:
    """What is predicted of a row.

    Attributes:
        task: binary and multiclass say which class, regression how much.
        classes: texts that the column holds, in the order of their numbers 0, 1, …; of a binary label the second is
            the positive one. A binary label without them is 0 or 1, true or false, or yes or no.
        weight: of its loss, beside other labels.
    """

    task: Task = "binary"
    classes: tuple[str, ...] = ()
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.task == "binary" and len(self.classes) not in (0, 2):
            raise ConfigError(
                f"a binary label has the classes {list(self.classes)}, expected two, or none for 0 and 1."
            )
        if self.task == "regression" and self.classes:
            raise ConfigError(
                f"a regression label has the classes {list(self.classes)}, expected none: it is a number."
            )
        if self.task == "multiclass" and len(self.classes) < 2:
            raise ConfigError(f"a multiclass label has the classes {list(self.classes)}, expected all of its names.")
        if len(set(self.classes)) < len(self.classes):
            raise ConfigError(f"classes {list(self.classes)} has one twice. Name each once.")


def _choices_of(column: ColumnConfig) -> dict[str, Any]:
    """Return the choices of a column, with a length for vectors only: data prepared by earlier versions have none."""
    return {name: value for name, value in asdict(column).items() if name != "length" or value}


def not_in_requests(name: str) -> str | None:
    """Why a request cannot have a column of this name; None where it can."""
    if (end := next((end for end in (VALUES, NNZS, VALID) if name.endswith(end)), None)) is None:
        return None
    return f"a request's own names end with {end}, of what belongs to a column {name.removesuffix(end)!r}"


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """Files, columns and labels of a data set.

    Attributes:
        data: files.
        columns: by their names in the files; others are not read.
        labels: what is predicted, by the names of their columns.
        time: column that orders the rows, for a split by time.
        group: column whose rows belong together: GAUC averages over it, and a split by group cuts between its values.
    """

    data: FilesConfig
    columns: Mapping[str, ColumnConfig]
    labels: Mapping[str, LabelConfig]
    time: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        if not self.labels:
            raise ConfigError("labels is empty, expected the column that is to be predicted.")
        if both := sorted(name for name in self.labels if name in self.columns and self.columns[name].is_feature):
            raise ConfigError(f"{both} are labels and features too. Leave them out of columns, or set them to ignored.")
        if not self.features:
            raise ConfigError("no column is a feature. Give at least one a role other than ignored.")
        for name in self.features:
            why = not_in_requests(name)
            if name == SCORE and [label.task for label in self.labels.values()] == ["binary"]:
                why = "the output of the served model has this name"
            if why:
                raise ConfigError(f"columns.{name} is a feature, but {why}. Rename it in the files, or ignore it.")
        for key in ("time", "group"):
            if (name := getattr(self, key)) is not None:
                self._check_names(f"{key} is", name)
        for name, column in self.columns.items():
            if column.of is not None:
                self._check_names(f"columns.{name}.of is", column.of)
                if self.columns[column.of].role not in CATEGORIES:
                    raise ConfigError(f"columns.{name}.of is {column.of!r}, which has no ids. Name a column of ids.")
        if self.time is not None and self.columns[self.time].type not in ("timestamp", "int", "float"):
            raise ConfigError(f"time is {self.time!r}, of type {self.columns[self.time].type}, expected a timestamp.")

    @property
    def features(self) -> dict[str, ColumnConfig]:
        return {name: column for name, column in self.columns.items() if column.is_feature}

    @property
    def read(self) -> dict[str, ColumnConfig]:
        """The columns that are read, but for the labels."""
        wanted = {self.time, self.group}
        return {name: column for name, column in self.columns.items() if column.is_feature or name in wanted}

    @property
    def choices(self) -> dict[str, Any]:
        """All that shapes what is made of the rows, by key, as JSON has it."""
        data = {f"data.{name}": value for name, value in asdict(self.data).items()}
        if self.data.quote == FilesConfig.quote:
            del data["data.quote"]  # data prepared by earlier versions have none
        columns = {f"columns.{name}": _choices_of(column) for name, column in self.read.items()}
        labels = {f"labels.{name}": asdict(label) for name, label in self.labels.items()}
        found = data | columns | labels | {"time": self.time, "group": self.group}
        of_json: dict[str, Any] = json.loads(json.dumps(found))
        return of_json

    def _check_names(self, what: str, name: str) -> None:
        if name not in self.columns:
            raise ConfigError(f"{what} {name!r}, which is no column.{did_you_mean([name], self.columns)}")
