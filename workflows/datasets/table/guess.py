"""What a profile suggests: the type and role of each column, the label and its task, and why.

Caps on distinct values are fixed, not shares of the rows: by a share, an age becomes a category on a large table.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workflows.datasets.table.config import EPOCHS, ColumnConfig, LabelConfig, Part, not_in_requests
from workflows.datasets.table.profile import NULL_WORDS, Column, Profile, are_booleans
from workflows.errors import DataError
from workflows.spelling import did_you_mean
from workflows.tensor_names import SCORE

FEW_NUMBERS = 32
"""Whole numbers with so many distinct values at most are taken for categories."""
MANY_VALUES = 1_000
"""Distinct values from which on a category is an id, whose rare values share one."""
MANY_IDS = 200_000
_UNIQUE = 0.95
_FREE_TEXT_WORDS = 5.0
_SKEWED = 3.0
_MOST_CLASSES = 1_000
_RARE = 0.01
_EPOCHS = {"epoch_s": (8e8, 3e9), "epoch_ms": (8e11, 3e12), "epoch_us": (8e14, 3e15)}  # years 1995 to 2065
_LABELS = (
    "label",
    "click",
    "clicked",
    "is_click",
    "target",
    "y",
    "class",
    "outcome",
    "converted",
    "conversion",
    "churn",
    "churned",
    "response",
)
_ID = re.compile(r"(^|[^a-zA-Z])(id|uid|uuid|guid|code|zip|zipcode|sku|asin|isbn)$|[a-z](Id|ID|UUID)$", re.IGNORECASE)
_NAMED = re.compile(r"^(user|customer|member|visitor|session|item|product|article|movie|store)$", re.IGNORECASE)
_AMOUNT = re.compile(
    r"count|amount|price|rating|score|age|days|total|num|sales|quantity|stars|demand|duration|cost|income|value|percent",
    re.IGNORECASE,
)
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")
_TIME = re.compile(r"time|date|stamp|(^|_)(ts|dt|at)$", re.IGNORECASE)
_HISTORY = re.compile(r"hist|past|prev|last|recent|viewed|clicked|bought|seen", re.IGNORECASE)
_USER = re.compile(r"user|customer|member|visitor|session|client|reviewer|household", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A column as it is taken to be.

    Attributes:
        config: type, role and how it is encoded.
        why: a few words.
    """

    config: ColumnConfig
    why: str


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """What a profile suggests.

    Attributes:
        columns: by name, the labels not among them.
        labels: by name.
        label_why: why these, and why such a task.
        time: column that orders the rows.
        group: column whose rows belong together.
        missing: texts that stand for a missing number.
    """

    columns: Mapping[str, Guess]
    labels: Mapping[str, LabelConfig]
    label_why: Mapping[str, str]
    time: str | None = None
    group: str | None = None
    missing: tuple[str, ...] = ("",)
    leaks: Mapping[str, str] = field(default_factory=dict)


def guess(found: Profile, labels: tuple[str, ...] = ()) -> Guesses:
    """Guess all columns.

    Args:
        found: what the files hold.
        labels: the columns that are to be predicted; without them, the name or the place says.

    Raises:
        DataError: a label is no column, or nothing can be learned of it.
    """
    chosen, whys = (labels, dict.fromkeys(labels, "given")) if labels else _likely_label(found)
    if unknown := [name for name in chosen if name not in found.columns]:
        names = list(found.columns)
        shown, hint = ", ".join(names[:20]), did_you_mean(unknown, names)
        raise DataError(f"there is no column {unknown[0]!r} to predict. There are {shown}.{hint}")
    label_configs, label_whys = {}, {}
    for name in chosen:
        label_configs[name], why = _label_of(found.columns[name])
        label_whys[name] = f"{whys[name]}; {why}"
    guesses = {name: guess_column(column) for name, column in found.columns.items() if name not in chosen}
    if SCORE in guesses and [label.task for label in label_configs.values()] == ["binary"]:
        guesses[SCORE] = _ignored("the answers of the served model are called so: rename it to have it")
    guesses = _with_histories(guesses, found)
    missing = sorted({text for name, g in guesses.items() for text in _null_words(found.columns[name], g.config)})
    times = [name for name, g in guesses.items() if g.config.role == "timestamp"]
    clocks = [name for name in times if not found.columns[name].is_date]
    groups = [name for name, g in guesses.items() if g.config.role == "id" and _USER.search(name)]
    return Guesses(
        columns=guesses,
        labels=label_configs,
        label_why=label_whys,
        time=clocks[0] if len(clocks) == 1 else times[0] if len(times) == 1 else None,
        group=groups[0] if groups else None,
        missing=("", *missing),
    )


def _likely_label(found: Profile) -> tuple[tuple[str, ...], dict[str, str]]:
    by_name = {name.casefold(): name for name in found.columns}
    for likely in _LABELS:
        if likely in by_name:
            return (by_name[likely],), {by_name[likely]: "by its name"}
    last = list(found.columns)[-1]
    like = guess_column(found.columns[last])
    if like.config.role in ("multihot", "timestamp", "text"):
        raise DataError(
            f"no column is called as labels are, and the last one, {last!r}, is none ({like.why}). Choose one with "
            "--label."
        )
    return (last,), {last: "the last column; choose another with --label"}


def _label_of(column: Column) -> tuple[LabelConfig, str]:
    """The task of a label, and why."""
    if column.num_distinct < 2:
        value = "nothing" if not column.num_present else f"{next(iter(column.counts or {}), '?')!r} in all rows"
        raise DataError(
            f"the label {column.name!r} is {value}: there is nothing to learn. Choose another with --label."
        )
    is_number = column.kind in ("number", "bool") or column.share_of_numbers >= 1 - _RARE
    if column.num_distinct == 2 and column.counts is not None:
        names = sorted(_words(column), key=lambda name: (name.strip().lower() in _POSITIVE, name))
        values = {str(value).strip().lower() for value in column.counts}
        if values <= {"0", "1", "0.0", "1.0"} or values <= {"true", "false"} or are_booleans(values):
            return LabelConfig(), f"two values; {names[1]!r} is the positive one"
        return LabelConfig(classes=tuple(names)), f"two values; {names[1]!r} is taken for the positive one"
    if column.kind not in ("text", "number", "bool"):
        raise DataError(
            f"the label {column.name!r} holds {column.kind}, expected classes or numbers. Choose another with --label."
        )
    if is_number and not _are_classes(column):
        return LabelConfig(task="regression"), f"{column.num_distinct:,} distinct numbers"
    if column.counts is None or column.num_distinct > min(_MOST_CLASSES, max(column.num_present // 2, 2)):
        raise DataError(
            f"the label {column.name!r} has {column.num_distinct:,} distinct texts in {column.num_present:,} rows, "
            f"expected at most {_MOST_CLASSES:,} classes, or numbers. Choose another with --label."
        )
    names = sorted(_words(column), key=lambda name: (float(name), name) if is_number else (0.0, name))
    rarest, num_rows = min(column.counts.items(), key=lambda counted: counted[1])
    rare = (
        f", {rarest!r} in {num_rows:,} of {column.num_present:,} rows" if num_rows < _RARE * column.num_present else ""
    )
    return LabelConfig(task="multiclass", classes=tuple(names)), f"{len(names)} distinct values{rare}"


_POSITIVE = ("1", "true", "yes", "y", "t", "positive", "pos", "click", "good", "success")


def _words(column: Column) -> list[str]:
    """Distinct values as a reader of labels has them."""
    values: Mapping[Any, int] = column.counts or {}
    words = {str(int(v)) if isinstance(v, float) and v.is_integer() else str(v).strip() for v in values}
    if column.kind == "bool":
        words = {word.lower() for word in words}
    return list(words - {""})


def _are_classes(column: Column) -> bool:
    """Whether numbers are names: few, whole, close together, and not called an amount."""
    is_close = column.highest - column.lowest < 2 * max(column.num_distinct, 1)
    is_few = column.num_distinct <= 50 and column.num_distinct <= 0.05 * column.num_present + 5
    return column.is_whole and is_few and is_close and not _AMOUNT.search(column.name)


def guess_column(column: Column) -> Guess:
    """The type and role of a feature."""
    few = _few(column)
    if why := not_in_requests(column.name):
        return _ignored(f"{why}: rename it to have it")
    if not column.num_present:
        return _ignored("no value in any row")
    if column.kind == "list":
        return _list(column)
    if column.kind not in ("text", "number", "bool", "time"):
        return _ignored(f"holds {column.kind}, which has no form here", type_="string")
    if column.num_distinct == 1 and not column.num_missing:
        return _ignored("one value in all rows")
    if column.kind == "bool":
        return _as(few, type="bool", role="categorical")
    if (time := _time(column)) is not None:
        return time
    if column.kind == "number" or _are_numbers(column):
        return _number(column)
    if not column.is_typed and column.counts is not None and are_booleans(column.counts):
        return _as(few, type="bool", role="categorical")
    if (formats := _several_formats(column)) is not None:
        return _ignored(f"times in several formats ({formats}): write them in one, or set type and role")
    return _text(column)


def _few(column: Column) -> str:
    return f"{'' if column.counts is not None else 'about '}{column.num_distinct:,} distinct values"


def _as(why: str, **choices: object) -> Guess:
    return Guess(config=ColumnConfig(**choices), why=why)  # type: ignore[arg-type]


def _ignored(why: str, type_: str = "string") -> Guess:
    return _as(why, type=type_, role="ignored")


def _are_numbers(column: Column) -> bool:
    if column.has_zeros and column.is_whole:
        return False  # 00123 is a code
    if column.is_typed and column.is_whole and column.num_distinct <= FEW_NUMBERS:
        return False  # a category either way, so it stays a text
    return column.num_numbers == column.num_present or (
        column.share_of_numbers >= 0.5 and set(column.misfits) <= {*NULL_WORDS}
    )


def _null_words(column: Column, config: ColumnConfig) -> set[str]:
    return set(column.misfits) if column.kind == "text" and config.type in ("int", "float") else set()


def _number(column: Column) -> Guess:
    few = _few(column)
    kind = "int" if column.is_whole and abs(column.lowest) < 2**63 and column.highest < 2**63 else "float"
    is_unique = column.num_distinct >= _UNIQUE * column.num_present
    is_id = _ID.search(column.name) or _NAMED.search(column.name)
    if column.is_whole and is_id and column.num_distinct > FEW_NUMBERS:
        if is_unique and column.num_present > 100:
            return _ignored("an id that is another one in nearly every row", type_=kind)
        large = max(abs(column.lowest), abs(column.highest)) > 2**53 and column.num_missing
        return _id(column, "an id by its name", "string" if large else kind)
    extent = column.highest - column.lowest + 1
    if column.is_whole and column.num_present > 100 and column.num_distinct > 0.99 * extent and is_unique:
        return _ignored("whole numbers in a row, another one in each row: a row number", type_=kind)
    if column.is_whole and column.num_distinct <= FEW_NUMBERS:
        return _as(f"{few}, so a category", type=kind, role="categorical")
    is_skewed = column.lowest >= 0 and column.skewness > _SKEWED
    why = f"{few} from {column.lowest:g} to {column.highest:g}" + (
        "; a long tail, so its logarithm" if is_skewed else ""
    )
    return _as(why, type=kind, role="numeric", scale="log" if is_skewed else "standard")


def _text(column: Column) -> Guess:
    few = _few(column)
    odd = column.num_present - column.num_numbers
    if 0 < odd < _RARE * column.num_present + 1 and not column.has_zeros and column.num_numbers:
        shown = ", ".join(map(repr, list(column.misfits)[:3]))
        few = f"{few}; numbers, but for {odd:,} rows such as {shown}, so taken as text"
    if column.misfits and all(map(_DECIMAL_COMMA.fullmatch, column.misfits)):
        return _ignored(f"such as {next(iter(column.misfits))!r}: if these are numbers, write them with a point")
    if (sign := _separator(column)) is not None:
        return _as(f"lists, separated by {sign}", type="string", role="multihot", separator=sign)
    is_unique = column.num_distinct >= _UNIQUE * column.num_present and column.num_present > 100
    mean_words = column.words[1] / max(column.words[0], 1)
    if mean_words >= _FREE_TEXT_WORDS and column.num_distinct > MANY_VALUES:
        if is_unique:
            return _ignored(f"free text, {mean_words:.0f} words on average, another one in nearly every row")
        return _as(f"{few}; free text, each whole text a category", role="text", hash_buckets=10_000)
    if is_unique:
        return _ignored(f"{few}: another one in nearly every row, so nothing to learn of it")
    if column.num_distinct > MANY_VALUES or (_ID.search(column.name) and column.num_distinct > FEW_NUMBERS):
        return _id(column, few, "string")
    return _as(few, role="categorical")


def _id(column: Column, why: str, kind: str) -> Guess:
    """An id: rare ones share one, the more there are of them."""
    config = ColumnConfig(type=kind, role="id")  # type: ignore[arg-type]
    rows_each = column.num_present / max(column.num_distinct, 1)
    if column.num_distinct > MANY_IDS:
        return Guess(
            config=replace(config, frequency_threshold=10, hash_buckets=1_000),
            why=f"{why}; very many, so rare ones are hashed",
        )
    if column.num_distinct > MANY_VALUES and rows_each < 200:
        return Guess(
            config=replace(config, frequency_threshold=4),
            why=f"{why}; {rows_each:.0f} rows each, so rare ones share an id",
        )
    return Guess(config=config, why=why)


def _separator(column: Column) -> str | None:
    """A sign that parts many of the texts, of which there are more than pieces."""
    if column.counts is None:
        return None
    for sign, num_rows in column.separators.items():
        if num_rows < 0.1 * column.num_present or (sign == "," and num_rows < 0.3 * column.num_present):
            continue
        pieces = {piece.strip() for text in column.counts for piece in str(text).split(sign)}
        if len(pieces) < 0.8 * len(column.counts):
            return sign
    return None


def _list(column: Column) -> Guess:
    if column.element not in ("text", "number"):
        return _ignored(f"lists of {column.element}, expected lists of texts or numbers")
    distinct = round(column.num_distinct)
    kind = "string" if column.element == "text" else "int"
    config = ColumnConfig(type=kind, role="multihot", frequency_threshold=4 if distinct > MANY_VALUES else None)  # type: ignore[arg-type]
    return Guess(config=config, why=f"lists of {distinct:,} distinct values")


def _time(column: Column) -> Guess | None:
    if column.kind == "time":
        return _timestamp(column, "iso", column.lowest, column.highest)
    if column.kind == "text":
        for form, num_rows in column.formats.items():
            if num_rows >= column.num_present and not (form == "%Y%m%d" and not _TIME.search(column.name)):
                return _timestamp(column, form, *column.spans[form])
        if column.num_numbers < column.num_present:
            return None
    if column.is_whole and _TIME.search(column.name):
        for form, (low, high) in _EPOCHS.items():
            if low <= column.lowest and column.highest <= high:
                return _timestamp(column, form, column.lowest * EPOCHS[form], column.highest * EPOCHS[form])
    return None


def _timestamp(column: Column, form: str, lowest: float, highest: float) -> Guess:
    has_clock = form in EPOCHS or "%H" in form or (form == "iso" and _has_clock(column))
    column.is_date = not has_clock
    span_days = (highest - lowest) / 86_400e6
    parts: list[Part] = ["weekday"]
    if has_clock:
        parts.insert(0, "hour")
    if span_days > 31:
        parts += ["day"]
    if span_days > (2 * 365 if has_clock else 31):  # split by time, the last months of one year are new to the model
        parts += ["month"]
    if span_days > 365:
        parts += ["year"]
    shown = {"iso": "by ISO 8601", **{name: f"numbers since 1970, {name}" for name in EPOCHS}}.get(form, f"as {form}")
    return _as(
        "times" if column.kind == "time" else f"times, written {shown}",
        type="timestamp",
        role="timestamp",
        format=form,
        parts=tuple(parts),
    )


def _has_clock(column: Column) -> bool:
    if column.kind == "time":
        return not column.is_date
    few = list(column.counts)[:100] if column.counts is not None else []
    return any(":" in str(text) for text in few) if few else True


def _several_formats(column: Column) -> str | None:
    """Formats that together all texts are written in."""
    ways = {form: num_rows for form, num_rows in column.formats.items() if num_rows}
    if len(ways) < 2 or sum(ways.values()) < 0.99 * column.num_present or column.num_numbers:
        return None
    return ", ".join(f"{form}: {num_rows:,} rows" for form, num_rows in list(ways.items())[:4])


def _with_histories(guesses: dict[str, Guess], found: Profile) -> dict[str, Guess]:
    """Lists whose values are those of a column of ids."""
    ids = [name for name, g in guesses.items() if g.config.role in ("id", "categorical")]
    made = dict(guesses)
    for name, g in guesses.items():
        if g.config.role != "multihot" or not _HISTORY.search(name):
            continue
        listed = set(_elements(found, name, g.config))
        for other in ids:
            values = (
                set(map(str, found.sample[other].drop_null().to_pylist()))
                if other in found.sample.column_names
                else set()
            )
            if listed and len(listed & values) > 0.5 * len(listed) and guesses[other].config.type == g.config.type:
                config = replace(g.config, role="history", of=other, max_length=50, frequency_threshold=None)
                made[name] = Guess(config=config, why=f"lists of what {other} holds")
                break
    return made


def _elements(found: Profile, name: str, config: ColumnConfig) -> list[str]:
    rows = found.sample[name].drop_null().to_pylist()
    return [str(value) for row in rows for value in (row.split(config.separator) if isinstance(row, str) else row)]
