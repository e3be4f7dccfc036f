"""Guess column types and roles, labels and tasks from a profile, with an explanation of each guess.

Limits on distinct values are absolute: with relative ones, an age would become a category in a large table.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rankline.workflows.core.errors import DataError
from rankline.workflows.core.formatting import did_you_mean
from rankline.workflows.data.autodetect.profile import (
    CLEARLY_TIME,
    COMPACT_FORMATS,
    MAX_DISTINCT,
    NULL_WORDS,
    Column,
    Profile,
    are_numbers,
    infer,
    is_time,
    look_like_times,
    possible_formats,
)
from rankline.workflows.data.tabular.cast import FALSE, TRUE, times_of
from rankline.workflows.data.tabular.config import EPOCHS, ISO, ColumnConfig, LabelConfig, Part, Type, not_in_requests
from rankline.workflows.schema.arrow_types import is_text
from rankline.workflows.schema.tensor_names import SCORE

FEW_NUMBERS = 32
"""Integer columns with at most this many distinct values are treated as categories."""
SO_A_CATEGORY = ", so a category"
MANY_VALUES = 1_000
"""Categories with at least this many distinct values are treated as ids, whose rare values share one id."""
MANY_IDS = 200_000
_UNIQUE = 0.95
_FREE_TEXT_WORDS = 5.0
_SKEWED = 3.0
_MAX_CLASSES = 1_000
_MAX_NUMBERED_CLASSES = 20
_RARE = 0.01
_DAY = 86_400_000_000
_EPOCHS = {"epoch_s": (8e8, 3e9), "epoch_ms": (8e11, 3e12), "epoch_us": (8e14, 3e15)}  # years 1995 to 2065
_LABELS = (
    "label", "click", "clicked", "is_click", "target", "y", "class", "outcome", "converted", "conversion", "churn",
    "churned", "response",
)  # fmt: skip
_ID = re.compile(r"(^|[^a-zA-Z])(id|uid|uuid|guid|code|zip|zipcode|sku|asin|isbn)$|[a-z](Id|ID|UUID)$", re.IGNORECASE)
_NAMED = re.compile(r"^(user|customer|member|visitor|session|item|product|article|movie|store)$", re.IGNORECASE)
_AMOUNT = re.compile(
    r"count|amount|price|rating|score|age|days|total|num|sales|quantity|stars|demand|duration|cost|income|value|percent",
    re.IGNORECASE,
)
_POSITIVE = ("1", "1.0", "true", "yes", "y", "t", "positive", "pos", "click", "good", "success")
_MISSING_LABELS = frozenset(("na", "n/a", "#n/a", "<na>", "null", "(null)", "nan", "?", "\\n"))
"""Words for a missing label, in upper or lower case. Others, such as "none", may be classes."""
_CODE = re.compile(r"postal|postcode|pin(code)?$|phone|mobile|fax|(^|_)ip(_|$)|version", re.IGNORECASE)
"""Names of texts that may look like numbers with thousands separators."""
_SEPARATORS = {"|": 0.1, ";": 0.1, ",": 0.3}
"""List separator → minimum share of texts that contain it."""
_SPACE = r" \x{a0}\x{202f}"
_GROUPED = rf"[1-9]\d{{0,2}}((,\d{{3}})+(\.\d+)?|(\.\d{{3}})+(,\d+)?|(['’{_SPACE}]\d{{3}})+([.,]\d+)?)"
"""Numbers with thousands separators."""
_FORMATTED = rf"^[-+]?[$€£¥]?[{_SPACE}]?[-+]?({_GROUPED}|\d*[.,]?\d+)[{_SPACE}]?[%$€£¥]?$"
_TRIPLES = r"^\d{3}([, ]\d{3})+$"
"""Numbers with thousands separators, but also lists of three-digit numbers, and phone numbers."""
_UNCLEAR = re.compile(r"[-+]?[1-9]\d{0,2}[.,]\d{3}")
"""Numbers whose only sign separates either thousands or decimals."""
_TIME = re.compile(r"time|date|stamp|(^|_)(ts|dt|at)$", re.IGNORECASE)
_HISTORY = re.compile(r"hist|past|prev|last|recent|viewed|clicked|bought|seen", re.IGNORECASE)
_USER = re.compile(r"user|customer|member|visitor|session|client|reviewer|household", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Guess:
    config: ColumnConfig
    why: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Guesses:
    columns: Mapping[str, Guess]  # guesses by column name, excluding labels
    labels: Mapping[str, LabelConfig]  # label configs by column name
    label_why: Mapping[str, str]  # why each label and its task were chosen
    time: str | None = None  # column that orders the rows
    group: str | None = None  # column whose values define groups of rows
    missing: tuple[str, ...] = ("",)  # texts that mark a missing number, time or label


def labels_among(names: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """Return the label columns, each with the reason for choosing it.

    Raises:
        DataError: a label is not a column.
    """
    if unknown := [name for name in labels if name not in names]:
        shown, hint = ", ".join(names[:20]), did_you_mean(unknown, names)
        hint = " Repeat --label for several columns." if {*unknown[0].split(",")} <= {*names} else hint
        raise DataError(f"label column {unknown[0]!r} is unknown. Available: {shown}.{hint}")
    by_name = {name.casefold(): name for name in names}
    likely = [by_name[name] for name in _LABELS if name in by_name]
    if labels:
        return dict.fromkeys(labels, "given")
    return {likely[0]: "by its name"} if likely else {names[-1]: "the last column; choose another with --label"}


def guess(found: Profile, labels: Mapping[str, str]) -> Guesses:
    """Guess the config of every column and label from a profile.

    Raises:
        DataError: a label cannot be learned from.
    """
    label_configs, label_whys = dict[str, LabelConfig](), dict[str, str]()
    words: set[str] = set()
    for name, chosen in labels.items():
        column = found.columns[name]
        if chosen not in ("given", "by its name"):
            _check_last(column)
        label_configs[name], why, missing = _label_of(column, found.counts[name])
        label_whys[name] = f"{chosen}; {why}"
        words.update(missing)
    guesses = {name: guess_column(column) for name, column in found.columns.items() if name not in labels}
    if SCORE in guesses and [label.task for label in label_configs.values()] == ["binary"]:
        guesses[SCORE] = _ignored(
            "the output of the served model has the same name, and predict refuses files with such a column: rename it"
        )
    guesses = _with_histories(guesses, found)
    times = [name for name, g in guesses.items() if g.config.role == "timestamp"]
    clocks = [name for name in times if "hour" in guesses[name].config.parts]
    groups = [name for name, g in guesses.items() if g.config.role == "id" and _USER.search(name)]
    return Guesses(
        columns=guesses,
        labels=label_configs,
        label_why=label_whys,
        time=clocks[0] if len(clocks) == 1 else times[0] if len(times) == 1 else None,
        group=groups[0] if groups else None,
        missing=("", *sorted(words.union(*(g.missing for g in guesses.values())))),
    )


# --- Labels


def _check_last(column: Column) -> None:
    like = guess_column(column)
    if like.config.role in ("multihot", "timestamp", "text"):
        raise DataError(
            f"no column has a typical label name, and the last one, {column.name!r}, cannot be the label "
            f"({like.why}). Pass --label COLUMN."
        )


def _label_of(column: Column, counts: Mapping[Any, int] | None) -> tuple[LabelConfig, str, tuple[str, ...]]:
    kind = column.unusable or ("lists" if column.holds_lists else "times" if is_time(column.values.type) else None)
    if kind is not None:
        raise DataError(
            f"label {column.name!r} contains {kind}, expected classes or numbers. Pass another column with --label."
        )
    if counts is None:
        return *_many(column), column.elements.missing
    has_words = column.format == "csv" and column.is_text
    values = pa.array([str(value) if column.is_text else value for value in counts], column.values.type)
    values_of = infer(values, has_words=has_words)
    is_number = values_of.type in ("int", "float")
    words = values_of.missing
    if has_words and not is_number and values_of.type != "bool":
        words = tuple(text for text in counts if text.lower() in _MISSING_LABELS)
    present = {_name(value): number for value, number in counts.items() if value not in words}
    config, why = _task_of(column, present, is_number)
    for word in words:
        why += f"; {word!r}, in {counts[word]:,} rows, is treated as missing"
    if not has_words and (odd := [name for name in config.classes if name.lower() in _MISSING_LABELS]):
        why += f"; if {odd[0]!r} means missing, make it null in the files"
    return config, why, words


def _many(column: Column) -> tuple[LabelConfig, str]:
    if column.elements.type in ("int", "float"):
        few = _few(column, "distinct numbers")
        return LabelConfig(task="regression"), f"{few}, {_more_than(_MAX_NUMBERED_CLASSES)}"
    raise _too_many(column, column.num_distinct)


def _too_many(column: Column, num_texts: int) -> DataError:
    found, counts = column.distinct
    is_odd = ~are_numbers(found) if is_text(found.type) else np.zeros(len(found), np.bool_)
    fault = _fault_of_numbers(found.filter(pa.array(is_odd)), counts[is_odd], counts.sum()) if is_odd.any() else None
    return DataError(
        f"label {column.name!r} has {num_texts:,} distinct strings in {column.num_present:,} rows, "
        + (fault or f"expected numbers or at most {_MAX_CLASSES:,} classes. Pass another column with --label")
        + "."
    )


def _task_of(column: Column, counts: Mapping[str, int], is_number: bool) -> tuple[LabelConfig, str]:
    names = sorted(counts, key=lambda name: (float(name), name) if is_number else (0.0, name))
    if len(names) < 2:
        value = f"{names[0]!r} in all rows" if names else "missing in all rows"
        raise DataError(
            f"label {column.name!r} is {value}, so there is nothing to learn. Pass another column with --label."
        )
    if {name.lower() for name in names} <= {*TRUE, *FALSE}:
        if len({name.lower() in TRUE for name in names}) < 2:
            raise DataError(
                f"label {column.name!r} contains only {names}, which all mean the same thing. Pass another column with "
                "--label."
            )
        positive = next(name for name in names if name.lower() in TRUE)
        return LabelConfig(), f"two values; {positive!r} is positive"
    # Infinity is not a class: it makes the task a regression, whose label must be finite when the rows are read.
    is_finite = not is_number or all(math.isfinite(float(name)) for name in names)
    if len(names) == 2 and is_finite:
        names.sort(key=lambda name: name.lower().lstrip("+") in _POSITIVE)
        return LabelConfig(classes=tuple(names)), f"two values; {names[1]!r} is assumed positive"
    if is_number and (why := _why_amounts(column.name, counts)):
        return LabelConfig(task="regression"), f"{len(names):,} distinct numbers, {why}"
    if len(names) > min(_MAX_CLASSES, max(sum(counts.values()) // 2, 2)):
        raise _too_many(column, len(names))
    rarest, num_rows = min(counts.items(), key=lambda counted: counted[1])
    num_present = sum(counts.values())
    rare = f", {rarest!r} in {num_rows:,} of {num_present:,} rows" if num_rows < _RARE * num_present else ""
    return LabelConfig(task="multiclass", classes=tuple(names)), f"{len(names)} distinct values{rare}"


def _name(value: Any) -> str:
    """Return the class name to which the reader converts a label value."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _why_amounts(name: str, counts: Mapping[str, int]) -> str | None:
    """Return why a numeric label contains amounts, or None if it looks like class labels: few, closely spaced,
    consistently formatted integers in a column whose name does not suggest an amount.
    """
    numbers = {float(number) for number in counts}
    most = min(_MAX_NUMBERED_CLASSES, int(0.05 * sum(counts.values()) + 5))
    if len(numbers) < len(counts) or not all(number.is_integer() for number in numbers):
        return "not all written as whole numbers"
    if len(numbers) > most:
        return _more_than(most)
    if max(numbers) - min(numbers) >= 2 * len(numbers):
        return "too far apart for classes"
    return "an amount according to its name" if _AMOUNT.search(name) else None


def _more_than(most: int) -> str:
    return f"more than the {most} that could be classes"


# --- Columns


def guess_column(column: Column) -> Guess:
    if why := not_in_requests(column.name):
        return _ignored(f"{why}: rename the column to use it")
    if column.unusable:
        return _ignored(f"contains {column.unusable}, which is not supported")
    elements = column.elements.values
    if elements.null_count == len(elements):
        return _ignored("no value in any row")
    if column.holds_lists:
        return _list(column)
    if column.num_distinct == 1 and not column.missing_share:
        return _ignored("one value in all rows")
    if (time := _time(column)) is not None:
        guessed = time
    elif column.elements.type == "bool":
        guessed = _as(_few(column), type="bool", role="categorical")
    elif column.elements.type in ("int", "float") and not _is_coded(column):
        guessed = _number(column)
    else:
        return _text(column)
    return replace(guessed, missing=column.elements.missing)


def _is_coded(column: Column) -> bool:
    """Whether the strings of a non-CSV column are category codes that look like integers and should stay strings."""
    is_int = column.elements.type == "int"
    return column.is_text and column.format != "csv" and is_int and column.num_distinct <= FEW_NUMBERS


def _few(column: Column, what: str = "distinct values") -> str:
    return f"{'' if column.is_whole else 'about '}{column.num_distinct:,} {what}"


def _as(why: str, **choices: object) -> Guess:
    return Guess(config=ColumnConfig(**choices), why=why)  # type: ignore[arg-type]


def _ignored(why: str, type_: Type = "string") -> Guess:
    return _as(why, type=type_, role="ignored")


def _number(column: Column) -> Guess:
    few, kind = _few(column), column.elements.type
    numbers = column.elements.values.drop_null().cast(pa.float64(), safe=False).to_numpy()
    lowest, highest = numbers.min(), numbers.max()
    is_whole = bool((numbers == np.floor(numbers)).all())
    is_unique = column.num_distinct >= _UNIQUE * column.num_present and column.num_present > 100
    is_id = _ID.search(column.name) or _NAMED.search(column.name)
    if is_whole and is_id and column.num_distinct > FEW_NUMBERS:
        if is_unique:
            return _ignored("an id that differs in nearly every row", kind)
        # NVTabular reads integers as float64 if a value is missing.
        is_rounded = max(abs(lowest), abs(highest)) > 2**53 and column.missing_share
        return _id(column, f"{few}; an id according to its name", "string" if is_rounded else kind)
    if is_whole and is_unique and column.num_distinct > 0.99 * (highest - lowest + 1):
        return _ignored("consecutive whole numbers, unique per row: a row number", kind)
    if is_whole and column.num_distinct <= FEW_NUMBERS:
        return _as(f"{few}{SO_A_CATEGORY}", type=kind, role="categorical")
    is_skewed = lowest >= 0 and _skewness(numbers) > _SKEWED
    why = f"{few} from {lowest:g} to {highest:g}" + ("; long-tailed, so its logarithm is used" if is_skewed else "")
    return _as(why, type=kind, role="numeric", scale="log" if is_skewed else "standard")


def _skewness(numbers: NDArray[np.float64]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        centred = numbers - numbers.mean()
        return float(np.mean(centred**3) / max(np.mean(centred**2) ** 1.5, np.finfo(np.float64).tiny))


def _text(column: Column) -> Guess:
    values = column.values if column.is_text else column.elements.values
    few, texts = _few(column), pc.utf8_trim_whitespace(values.drop_null())
    found, counts = texts.value_counts().flatten()
    is_number = are_numbers(found)
    odd, odd_counts = found.filter(pa.array(~is_number)), counts.to_numpy()[~is_number]
    num_odd, exceptions = int(odd_counts.sum()), ""
    is_code = _ID.search(column.name) or _CODE.search(column.name)
    if not is_code and (fault := _fault_of_numbers(odd, odd_counts, len(texts))):
        if 2 * num_odd < len(texts):
            fault = f"in {num_odd:,} row{'s' * (num_odd > 1)}, {fault}"
        is_repeated = column.num_distinct <= min(MANY_VALUES, _UNIQUE * column.num_present)
        return _as(f"{few}; {fault}", role="categorical") if is_repeated else _ignored(fault)
    if 0 < num_odd < _RARE * len(texts) + 1 and is_number.any():
        shown = ", ".join(map(repr, odd.slice(0, 3).to_pylist()))
        exceptions = f"numbers, except in {num_odd:,} row{'s' * (num_odd > 1)} such as {shown}"
        few = f"{few}; {exceptions}, so read as text"
    if pc.all(pc.match_substring_regex(found, r"(?s)^\[.*\]$")).as_py():
        return _ignored(
            f"lists in brackets, such as {found[0].as_py()[:20]!r}: write lists of one type, as JSON or Parquet"
        )
    if (sign := _separator(found, counts.to_numpy())) is not None:
        return _as(f"lists, separated by {sign}", type="string", role="multihot", separator=sign)
    if look_like_times(found, CLEARLY_TIME) or (_TIME.search(column.name) and look_like_times(found)):
        if formats := possible_formats(found):
            return _ignored(_fault_of_times(found, formats))
        fault = "looks like times in an unknown format: set type, role and format"
        if column.num_distinct > FEW_NUMBERS:
            return _ignored(fault)
        few = f"{few}; {fault}"
    is_unique = column.num_distinct >= _UNIQUE * column.num_present and column.num_present > 100
    mean_words = 1 + pc.mean(pc.count_substring_regex(texts, r"\s+")).as_py()
    if mean_words >= _FREE_TEXT_WORDS and column.num_distinct > MANY_VALUES:
        if is_unique:
            return _ignored(f"free text, {mean_words:.0f} words on average, different in nearly every row")
        return _as(f"{few}; free text, each distinct text is a category", role="text", hash_buckets=10_000)
    if is_unique and exceptions:
        return _ignored(f"{exceptions}: correct or delete {'these rows' if num_odd > 1 else 'this row'}")
    if is_unique:
        return _ignored(f"{few}: different in nearly every row, so there is nothing to learn")
    if column.num_distinct > MANY_VALUES or (_ID.search(column.name) and column.num_distinct > FEW_NUMBERS):
        return _id(column, few, "string")
    return _as(few, role="categorical")


def _fault_of_numbers(odd: pa.Array, counts: NDArray[np.int64], num_rows: int) -> str | None:
    """Return advice for numbers with thousands separators, decimal commas, or currency or percent signs.

    Args:
        odd: the distinct texts of a column that cannot be read as numbers.
        counts: the number of rows with each of them.
        num_rows: number of rows with a text.

    Returns:
        None if there are no such numbers, or if too many texts are something else.
    """
    is_formatted = pc.match_substring_regex(odd, _FORMATTED).to_numpy(zero_copy_only=False)
    is_null = pc.is_in(pc.utf8_lower(odd), value_set=pa.array(NULL_WORDS, odd.type)).to_numpy(zero_copy_only=False)
    is_other = ~(is_formatted | is_null)
    formatted, others = odd.filter(pa.array(is_formatted)), odd.filter(pa.array(is_other))
    has_digits = pc.any(pc.match_substring_regex(others, r"\d")).as_py()  # rare long lists among short ones
    if not len(formatted) or has_digits or counts[is_other].sum() >= _RARE * num_rows + 1:
        return None
    if pc.all(pc.match_substring_regex(formatted, _TRIPLES)).as_py() and pc.max(pc.utf8_length(formatted)).as_py() > 7:
        return None
    example = max(formatted.to_pylist(), key=lambda text: (" or " not in _plain(text), len(text)))
    return f"such as {example!r}: if these are numbers, write them as {_plain(example)}"


def _plain(number: str) -> str:
    """Return a formatted number as it should be written, or both ways to read it."""
    number = re.sub(r"[^-+\d.,]", "", number)
    place = max(number.rfind("."), number.rfind(","))
    whole, decimals = re.sub("[.,]", "", number[:place]), number[place + 1 :]
    if _UNCLEAR.fullmatch(number):
        return f"{whole}{decimals} or {whole}.{decimals}"
    is_decimal = place >= 0 and number.count(number[place]) == 1
    return f"{whole}.{decimals}" if is_decimal else re.sub("[.,]", "", number)


def _fault_of_times(texts: pa.Array, formats: Sequence[str]) -> str:
    fitting = {form: times_of(texts, form).is_valid().to_numpy(zero_copy_only=False) for form in formats}
    best = max(formats, key=lambda form: fitting[form].sum())
    if np.logical_or.reduce(list(fitting.values())).all():
        others = [form for form in formats if (fitting[form] & ~fitting[best]).any()]
        shown = ", ".join((best, *others[:3]))
        return f"times in several formats ({shown}): use one format, or set type and role"
    misfit = texts.filter(pa.array(~fitting[best]))[0].as_py()
    return f"times written {_written(best)}, except some such as {misfit!r}: fix them, or set type and role"


def _id(column: Column, why: str, kind: Type) -> Guess:
    """Guess the config of an id column. The more distinct ids it has, the more aggressively rare ids are merged."""
    rows_each = column.num_present / max(column.num_distinct, 1)
    if column.num_distinct > MANY_IDS:
        why += "; too many for a table, so rare ones are hashed"
        return _as(why, type=kind, role="id", frequency_threshold=10, hash_buckets=1_000)
    if column.num_distinct > MANY_VALUES and rows_each < 200:
        why += f"; {rows_each:.0f} rows each, so rare ones share an id"
        return _as(why, type=kind, role="id", frequency_threshold=4)
    return _as(why, type=kind, role="id")


def _separator(texts: pa.Array, counts: NDArray[np.int64]) -> str | None:
    """Return a separator that splits many of the strings into repeating parts, or None if there is none."""
    for sign, least in _SEPARATORS.items():
        has_sign = pc.match_substring(texts, sign).to_numpy(zero_copy_only=False)
        if counts[has_sign].sum() < least * counts.sum() or (sign == "," and len(texts) > MAX_DISTINCT):
            continue
        pieces = pc.utf8_trim_whitespace(pc.split_pattern(texts, sign).flatten()).unique()
        if len(pieces) < 0.8 * len(texts):
            return sign
    return None


def _list(column: Column) -> Guess:
    of = column.values.type.value_type
    kind: Type = "string" if is_text(of) else column.elements.type
    if kind == "timestamp":  # in JSON a text, otherwise an integer as in requests
        kind = "string" if column.format == "jsonl" else "int"
    if kind == "float" or pa.types.is_floating(of):
        return _vector(column)
    threshold = 4 if column.num_distinct > MANY_VALUES else None
    why = f"lists of {column.num_distinct:,} distinct values"
    return _as(why, type=kind, role="multihot", frequency_threshold=threshold)


def _vector(column: Column) -> Guess:
    lengths = set(pc.list_value_length(column.values).drop_null().to_pylist()) - {0}
    if len(lengths) > 1 or column.elements.values.null_count:
        return _ignored("lists of numbers of different lengths, expected vectors of one length", "float")
    (length,) = lengths
    return _as(f"vectors of {length} numbers", type="float", role="vector", length=length)


# --- Times


def _time(column: Column) -> Guess | None:
    found = column.elements
    if found.type == "timestamp":
        return _timestamp(found.values, found.formats, is_written=column.is_text)
    if found.type in ("int", "float") and _TIME.search(column.name):
        for form in COMPACT_FORMATS if column.is_text else ():
            times = times_of(pc.utf8_trim_whitespace(column.values), form)
            if times.null_count == found.values.null_count:
                return _timestamp(times, (form,), is_written=True)
        extremes = pc.min_max(found.values).as_py()
        for form, (low, high) in _EPOCHS.items():
            if low <= extremes["min"] and extremes["max"] <= high:
                micros = pc.multiply(found.values.cast(pa.float64(), safe=False), float(EPOCHS[form]))
                return _timestamp(micros.cast(pa.int64(), safe=False), (form,), is_written=True)
    return None


def _timestamp(micros: pa.Array, formats: tuple[str, ...], *, is_written: bool) -> Guess:
    times = micros.drop_null().to_numpy()
    has_clock = bool((times % _DAY != 0).any())
    span_days = (int(times.max()) - int(times.min())) / _DAY
    parts: list[Part] = ["weekday"]
    if has_clock:
        parts.insert(0, "hour")
    if span_days > 31:
        parts += ["day"]
    if span_days > (2 * 365 if has_clock else 31):  # with less, a split by time validates on months unseen in training
        parts += ["month"]
    if span_days > 365:
        parts += ["year"]
    why = f"times, written {_written(formats[0])}" if is_written else "times"
    if len(formats) > 1:
        why += f"; {formats[1]} also fits all rows: set format if that one is right"
    return _as(why, type="timestamp", role="timestamp", format=formats[0], parts=tuple(parts))


def _written(form: str) -> str:
    if form in EPOCHS:
        return f"numbers since 1970, {form}"
    return "in ISO 8601 format" if form == ISO else f"as {form}"


# --- Histories


def _with_histories(guesses: dict[str, Guess], found: Profile) -> dict[str, Guess]:
    ids = [name for name, g in guesses.items() if g.config.role in ("id", "categorical")]
    made = dict(guesses)
    for name, g in guesses.items():
        if g.config.role != "multihot" or not _HISTORY.search(name):
            continue
        listed = _elements(found.columns[name], g.config)
        for other in ids:
            values = set(map(str, found.columns[other].distinct[0].to_pylist()))
            if listed and len(listed & values) > 0.5 * len(listed) and guesses[other].config.type == g.config.type:
                config = replace(g.config, role="history", of=other, max_length=50, frequency_threshold=None)
                made[name] = Guess(config=config, why=f"lists of values from {other}")
                break
    return made


def _elements(column: Column, config: ColumnConfig) -> set[str]:
    values = column.distinct[0]
    if column.is_text:
        values = pc.utf8_trim_whitespace(pc.split_pattern(values, config.separator).flatten()).unique()
    return set(map(str, values.to_pylist())) - {""}
