"""`rankline init`: files of any shape → a recipe file with a comment on each guess."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from io import FileIO
from os.path import relpath
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from training.config import TrainConfig
from training.models.config import ModelConfig
from training.table_defaults import table_defaults
from workflows.datasets.table.config import ColumnConfig, FilesConfig, Format
from workflows.datasets.table.files import find_files, names_in, scan, unreadable, with_format
from workflows.datasets.table.guess import Guess, Guesses, guess
from workflows.datasets.table.leaks import find_leaks
from workflows.datasets.table.profile import Profile, profile
from workflows.datasets.text_files import unpacked
from workflows.errors import DataError
from workflows.progress import SILENT, Progress

_DELIMITERS = ",\t;|"
_FIRST_LINES = 20


@dataclass(frozen=True, kw_only=True)
class FirstRecipe:
    """What was found, and the recipe file that it comes to.

    Attributes:
        text: of the file.
        name: of the recipe.
        num_rows: in the files.
        guesses: columns and labels.
    """

    text: str
    name: str
    num_rows: int
    guesses: Guesses


def first_recipe(
    files: Sequence[str],
    labels: Sequence[str],
    directory: Path,
    *,
    name: str | None = None,
    format_name: Format | None = None,
    progress: Progress = SILENT,
) -> FirstRecipe:
    """Look at files and write a recipe for them.

    Args:
        files: files, directories and patterns, relative to the working directory.
        labels: columns to predict; without any, one is guessed.
        directory: of the recipe file, which names the files relative to it.
        name: of the recipe; None is that of the first file.
        format_name: of the files, where no ending says so.
        progress: told rows.

    Raises:
        DataError: the files are missing, empty or cannot be read, or nothing can be learned of the label.
        ConfigError: their format is not known.
    """
    config = FilesConfig(files=tuple(files), format=format_name)
    paths = find_files(config, Path())
    config = with_format(config, paths)
    if config.format == "csv":
        config = _as_written(paths[0], config)
    for path in paths:
        names_in(path, config)
    scanned = scan(paths, config)
    try:
        found = profile(scanned.extents, config, progress=progress)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(paths[0], error, config) from None
    guesses = _without_leaks(guess(found, tuple(labels)), found)
    if not any(column.config.is_feature for column in guesses.columns.values()):
        raise DataError(f"{paths[0]}: no column besides the label can be learned from. Give files with more columns.")
    shown = tuple(relpath(name, directory) if not Path(name).is_absolute() else name for name in files)
    config = replace(config, files=shown, missing=guesses.missing)
    named = name or Path(files[0]).name.split(".")[0]
    name = re.sub(r"[^0-9A-Za-z_-]+", "-", named).strip("-") or "table"
    return FirstRecipe(
        text="\n".join(_lines(name, config, found, guesses)) + "\n",
        name=name,
        num_rows=found.num_rows,
        guesses=guesses,
    )


def _as_written(path: Path, config: FilesConfig) -> FilesConfig:
    """Encoding, delimiter and header of a CSV file, by its first lines."""
    try:
        names_in(path, config)
    except DataError as error:
        if "encoding" not in str(error):
            raise
        config = replace(config, encoding="latin-1")
    with FileIO(path) as file, unpacked(path, file) as text:
        first = [line.decode(config.encoding) for line, _ in zip(text, range(_FIRST_LINES), strict=False)]
    lines = [line for line in first if line.strip()]
    if not lines:
        return config
    best = max(_DELIMITERS, key=lambda sign: (min(line.count(sign) for line in lines[:5]), -_DELIMITERS.index(sign)))
    config = replace(config, delimiter=best if best in lines[0] else ",")
    cells = [cell.strip().strip('"') for cell in lines[0].rstrip("\r\n").split(config.delimiter)]
    is_data = any(map(_is_number, cells))  # no column is called 3.5
    return replace(config, header=not is_data or len(lines) == 1)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text) is not None


def _without_leaks(guesses: Guesses, found: Profile) -> Guesses:
    """Guesses in which likely leaks are ignored, and say so."""
    configs = {name: column.config for name, column in guesses.columns.items()}
    leaks: dict[str, str] = {}
    for label, config in guesses.labels.items():
        leaks |= find_leaks(found.sample, configs, label, config)
    columns = dict(guesses.columns)
    for name, why in leaks.items():
        columns[name] = Guess(config=ColumnConfig(type=configs[name].type, role="ignored"), why=f"a likely leak: {why}")
    time = None if guesses.time in leaks else guesses.time
    group = None if guesses.group in leaks else guesses.group
    return replace(guesses, columns=columns, leaks=leaks, time=time, group=group)


# --- The text


def _lines(name: str, config: FilesConfig, found: Profile, guesses: Guesses) -> Iterable[str]:
    yield f"# Written by rankline init, from {found.num_rows:,} rows. Change what it guessed wrong."
    yield "# `rankline init --print-schema` has what may stand here, for people and for editors."
    yield ""
    yield f"name: {_flow(name)}"
    yield ""
    yield "data:"
    yield f"  files: {_flow(list(config.files))}  # relative to this file; directories and patterns, too"
    yield f"  format: {config.format}"
    if config.format == "csv":
        yield f"  delimiter: {_flow(config.delimiter)}"
        if not config.header:
            yield "  header: false  # the first line looks like data"
        if config.encoding != "utf-8":
            yield f"  encoding: {config.encoding}"
        yield f"  missing: {_flow(list(config.missing))}  # where a number or time is missing"
    yield ""
    yield "labels:"
    for label, label_config in guesses.labels.items():
        choices: dict[str, Any] = {"task": label_config.task}
        if label_config.classes:
            choices["classes"] = list(label_config.classes)
        yield f"  # {_comment(guesses.label_why[label])}"
        yield f"  {_flow(label)}: {_flow(choices)}"
    yield ""
    if guesses.time:
        yield f"time: {_flow(guesses.time)}  # orders the rows"
    if guesses.group:
        yield f"group: {_flow(guesses.group)}  # GAUC averages over it"
    split = "time" if _splits_by_time(guesses, found) else "random"
    yield "rows:"
    yield f"  split: {split}  # random, time (validate on the latest; needs time:), group (needs group:)"
    yield "  valid_share: 0.2"
    yield ""
    yield "# role: id, categorical, text, multihot, history, numeric, timestamp, group or ignored"
    yield "columns:"
    for column, guessed in guesses.columns.items():
        missing = found.columns[column].num_missing
        nulls = f"; {missing / max(found.num_rows, 1):.2%} missing" if 0 < missing < found.num_rows else ""
        yield f"  {_flow(column)}: {_flow(_choices(guessed.config))}  # {_comment(guessed.why)}{nulls}"
    yield ""
    yield "prepare:"
    yield "  frequency_threshold: 0  # values that are seen less often share an id; a column may have its own"
    yield "  hash_buckets: 0  # ids for unseen values, by their hash"
    yield ""
    run = table_defaults(found.num_rows)
    yield "model:  # or another: docs/models.md has all, such as lightgbm"
    yield f"  name: {run.model.name}"
    yield from _chosen(run.model)
    yield "training:"
    yield from _chosen(run)
    yield ""
    yield "serving:"
    yield "  max_batch_size: 65536"


def _splits_by_time(guesses: Guesses, found: Profile) -> bool:
    return guesses.time is not None and not found.columns[guesses.time].is_date


def _choices(config: ColumnConfig) -> dict[str, Any]:
    usual = ColumnConfig()
    kept = {"type": config.type, "role": config.role}
    names = ("format", "parts", "separator", "scale", "of", "max_length", "frequency_threshold", "hash_buckets")
    for name in names:
        if (value := getattr(config, name)) != getattr(usual, name):
            kept[name] = list(value) if isinstance(value, tuple) else value  # type: ignore[assignment]
    return kept


def _chosen(config: ModelConfig | TrainConfig) -> Iterable[str]:
    """The choices of a config that are others than usual, but for a model among them."""
    usual = type(config)()
    for choice in fields(config):
        value = getattr(config, choice.name)
        if choice.name != "model" and value != getattr(usual, choice.name):
            yield f"  {choice.name}: {_flow(list(value) if isinstance(value, tuple) else value)}"


def _flow(value: Any) -> str:
    """A value in one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=float("inf"), sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _comment(text: str) -> str:
    return " ".join(text.split())
