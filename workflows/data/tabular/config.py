"""The data section of a recipe file, as classes that also define the JSON schema for editors. Fast to import."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.formatting import did_you_mean
from rankline.workflows.core.validation import MAX_BUCKETS, MAX_INT32, MAX_PADDED_LENGTH, check_at_least
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
"""Time formats: ISO 8601, or integers since 1970, by microseconds per unit."""


@dataclass(frozen=True, kw_only=True)
class FilesConfig:
    """The data files and their format.

    Attributes:
        files: files, directories and patterns such as logs/*.csv, relative to the recipe file.
        format: format of all files; if not set, it is derived from the file names.
        delimiter: delimiter between the cells of a CSV file.
        quote: quoting of the cells of a CSV file. A cell in double quotes may contain delimiters and line breaks; with
            none, a quote is an ordinary character.
        header: whether the first line of a CSV file contains the column names; if not, they are column_1, column_2 and
            so on.
        encoding: text encoding of a CSV file.
        missing: texts that mark a missing number, time or label in a CSV file; in text columns, only empty text is
            missing.
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
            raise ConfigError(
                f"delimiter is {self.delimiter!r}, expected one ASCII character other than a quote or line break."
            )


@dataclass(frozen=True, kw_only=True)
class ColumnConfig:
    """The contents and the role of a column.

    Attributes:
        type: type of the values, or of the list elements.
        role: how the column is used. id, categorical and text are encoded by a vocabulary; multihot and history are
            lists of such values; numeric is scaled, and a vector is a list of numbers of fixed length; a timestamp is
            split into `parts`; group identifies rows that belong together and is not a feature; ignored is not read.
        format: format of a timestamp that is text or a number: "iso", "epoch_s", "epoch_ms", "epoch_us", or a strptime
            format such as "%d/%m/%Y %H:%M".
        parts: parts of a timestamp that become features; the last two are numeric, the others are categories.
        separator: separator of list elements in a CSV file.
        length: number of elements of a vector.
        scale: scaling of a numeric column or vector: standard gives mean 0 and standard deviation 1; log applies
            log(1 + x) first, for counts and amounts; none leaves the values unchanged.
        missing_indicator: for a numeric column, whether the model also gets a number that is 1 where the value is
            missing, in addition to the mean that replaces it.
        of: for a history, the column whose ids it lists.
        max_length: for a list, the number of last elements to keep; 0 keeps all.
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
    missing_indicator: bool = False
    of: str | None = None
    max_length: int = 0
    frequency_threshold: int | None = None
    hash_buckets: int | None = None

    def __post_init__(self) -> None:
        check_at_least(self, 0, "max_length", maximum=MAX_PADDED_LENGTH)
        check_at_least(self, 0, "length", maximum=MAX_PADDED_LENGTH)
        for name, most in (("frequency_threshold", MAX_INT32), ("hash_buckets", MAX_BUCKETS)):
            if getattr(self, name) is not None:
                check_at_least(self, 0, name, maximum=most)
        if self.role in ("numeric", "vector") and self.type not in ("int", "float", "bool"):
            raise ConfigError(
                f"role {self.role} has type {self.type}, expected int, float or bool. Choose another role."
            )
        if self.missing_indicator and self.role != "numeric":
            raise ConfigError(f"role {self.role} has missing_indicator, which only role numeric supports. Omit it.")
        if (self.role == "vector") != (self.length > 0):
            raise ConfigError(
                f"role {self.role} has length {self.length}. Role vector requires 'length' (number of values), "
                "and other roles must omit 'length'."
            )
        if (self.role == "timestamp") != (self.type == "timestamp") and self.role not in ("ignored", "group"):
            raise ConfigError(
                f"role {self.role} has type {self.type}. Set both role and type to timestamp, or neither."
            )
        if self.role == "timestamp" and not self.parts:
            raise ConfigError(
                "role timestamp has no parts, so the model gets no input. List at least one part, or set role ignored."
            )
        if (self.role == "history") != (self.of is not None):
            raise ConfigError("role history requires 'of', the column whose ids it lists; other roles must omit 'of'.")

    @property
    def is_list(self) -> bool:
        return self.role in LISTS

    @property
    def is_feature(self) -> bool:
        """Whether the column is a model input and therefore part of a request."""
        return self.role not in ("group", "ignored")


@dataclass(frozen=True, kw_only=True)
class LabelConfig:
    """A label to predict.

    Attributes:
        task: binary and multiclass predict a class, regression predicts a number.
        classes: texts in the column, in the order of their numbers 0, 1, …; the second class of a binary label is the
            positive one. A binary label without classes is 0 or 1, true or false, or yes or no.
        weight: weight of this label's loss relative to the other labels.
    """

    task: Task = "binary"
    classes: tuple[str, ...] = ()
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.task == "binary" and len(self.classes) not in (0, 2):
            raise ConfigError(
                f"a binary label has classes {list(self.classes)}, expected exactly two, or none for values 0 and 1."
            )
        if self.task == "regression" and self.classes:
            raise ConfigError(
                f"a regression label has classes {list(self.classes)}, expected none because the label is a number."
            )
        if self.task == "multiclass" and len(self.classes) < 2:
            raise ConfigError(
                f"a multiclass label has classes {list(self.classes)}, expected at least two class names."
            )
        if len(set(self.classes)) < len(self.classes):
            raise ConfigError(f"classes {list(self.classes)} contains a duplicate. List each class once.")


FILLED = "_filled"
"""Ending of the name of a missing indicator, as NVTabular's FillMissing writes it."""


def not_in_requests(name: str) -> str | None:
    """Return why a column name is reserved in requests, or None if it is allowed."""
    if (end := next((end for end in (VALUES, NNZS, VALID) if name.endswith(end)), None)) is None:
        return None
    return f"names ending in {end} are reserved in requests for data that belongs to column {name.removesuffix(end)!r}"


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """Files, columns and labels of a dataset.

    Attributes:
        data: the data files.
        columns: columns by their names in the files; other columns are not read.
        labels: labels by the names of their columns.
        time: column that orders the rows, for a split by time.
        group: column whose values define groups of rows: a split by group keeps them together, and GAUC averages over
            them if the column is a feature.
    """

    data: FilesConfig
    columns: Mapping[str, ColumnConfig]
    labels: Mapping[str, LabelConfig]
    time: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        if not self.labels:
            raise ConfigError("labels is empty, expected at least one column to predict.")
        if both := sorted(name for name in self.labels if name in self.columns and self.columns[name].is_feature):
            raise ConfigError(f"{both} are both labels and features. Remove them from columns, or set role ignored.")
        if not self.features:
            raise ConfigError("no column is a feature. Set a role other than ignored for at least one column.")
        marked = {f"{name}{FILLED}" for name, column in self.columns.items() if column.missing_indicator}
        if taken := sorted(marked & {*self.columns, *self.labels}):
            raise ConfigError(
                f"column {taken[0]!r} has the name of a missing_indicator. Omit it, or rename the column."
            )
        for name in self.features:
            why = not_in_requests(name)
            if name == SCORE and [label.task for label in self.labels.values()] == ["binary"]:
                why = "the output of the served model has the same name"
            if why:
                raise ConfigError(f"columns.{name} is a feature, but {why}. Rename it in the files, or ignore it.")
        for key in ("time", "group"):
            if (name := getattr(self, key)) is not None:
                self._check_names(f"{key} is", name)
        for name, column in self.columns.items():
            if column.of is not None:
                self._check_names(f"columns.{name}.of is", column.of)
                if self.columns[column.of].role not in CATEGORIES:
                    raise ConfigError(
                        f"columns.{name}.of is {column.of!r}, which contains no ids. Set it to a column of ids."
                    )
        if self.group in self.labels:
            raise ConfigError(f"group is {self.group!r}, which is a label. Set it to a column of users, for example.")
        if self.time is not None and self.columns[self.time].type not in ("timestamp", "int", "float"):
            raise ConfigError(
                f"the time column {self.time!r} has type {self.columns[self.time].type}, expected a timestamp."
            )

    @property
    def features(self) -> dict[str, ColumnConfig]:
        return {name: column for name, column in self.columns.items() if column.is_feature}

    @property
    def read(self) -> dict[str, ColumnConfig]:
        """The columns to read, excluding labels."""
        wanted = {self.time, self.group}
        return {name: column for name, column in self.columns.items() if column.is_feature or name in wanted}

    @property
    def choices(self) -> dict[str, Any]:
        """All options that affect the prepared data, as a dict of JSON values."""
        data = {f"data.{name}": value for name, value in asdict(self.data).items()}
        if self.data.quote == FilesConfig.quote:
            del data["data.quote"]  # absent in data prepared by earlier versions
        columns = {f"columns.{name}": asdict(column) for name, column in self.read.items()}
        for choices in columns.values():
            if not choices["length"]:
                del choices["length"]  # only vectors have it: absent in data prepared by earlier versions
        labels = {f"labels.{name}": asdict(label) for name, label in self.labels.items()}
        found = data | columns | labels | {"time": self.time, "group": self.group}
        of_json: dict[str, Any] = json.loads(json.dumps(found))
        return of_json

    def _check_names(self, what: str, name: str) -> None:
        if name not in self.columns:
            raise ConfigError(f"{what} {name!r}, which is not a column.{did_you_mean([name], self.columns)}")
