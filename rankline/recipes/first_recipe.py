"""Writes the recipe file for `rankline init`, with a comment that explains each guess."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os.path import relpath
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from rankline.training.config.train import TrainConfig
from rankline.training.models.auto import AutoConfig
from rankline.training.models.config import ModelConfig
from rankline.training.models.tabular import MLPConfig
from rankline.workflows.core.errors import DataError
from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.data.autodetect.guess import SO_A_CATEGORY, Guess, Guesses, guess, labels_among
from rankline.workflows.data.autodetect.leakage import find_leaks
from rankline.workflows.data.autodetect.profile import Column, Profile, as_written, profile
from rankline.workflows.data.tabular.config import FILLED, ColumnConfig, FilesConfig, Format, TableConfig
from rankline.workflows.data.tabular.files import find_files, names_in, scan, with_format
from rankline.workflows.data.tabular.reader import names_of, read_table
from rankline.workflows.preprocess.config import RowsConfig
from rankline.workflows.preprocess.raw import StreamedRows
from rankline.workflows.schema.arrow_types import holds_lists
from rankline.workflows.storage.artifacts import output_file

_REMEDIES: Mapping[str, Mapping[str, Any]] = {
    "Set 'encoding'": {"encoding": "latin-1"},
    "'quote: none'": {"quote": "none"},
}
"""Mapping from a remedy in a CSV reader's error message to the corresponding config change."""
_LEAK_ROWS = 20_000
_MANY_COPIES = 0.02
"""Share of rows that repeat others, above which users are warned."""
_MAX_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class FirstRecipe:
    """A recipe file generated from data.

    Attributes:
        contradiction: the error of `prepare` for the first row that does not fit the guesses; None if all rows fit.
        copies: a warning about rows that repeat others, empty if there are few.
    """

    text: str
    name: str
    num_rows: int
    guesses: Guesses
    contradiction: DataError | None
    copies: str

    def columns(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the name, type and role of each column, and why they were guessed; the labels come first."""
        for name, label in self.guesses.labels.items():
            yield name, label.task, "label", self.guesses.label_why[name]
        for name, column in self.guesses.columns.items():
            yield name, column.config.type, column.config.role, column.why

    def write(self, path: Path) -> None:
        """Write the file, then raise `DataError` if some rows contradict the inferred settings."""
        with output_file(path) as file:
            file.write_text(self.text, encoding="utf-8")
        if self.contradiction is not None:
            raise DataError(f"{path} was written, but some rows do not match it: {self.contradiction}")


def first_recipe(
    files: Sequence[str],
    labels: Sequence[str],
    directory: Path,
    *,
    name: str | None = None,
    format_name: Format | None = None,
    progress: Progress = SILENT,
) -> FirstRecipe:
    """Profile data files and generate a recipe for them, inferring the labels if none are given."""
    files_config = FilesConfig(files=tuple(files), format=format_name)
    paths = find_files(files_config, Path())
    files_config = with_format(files_config, paths)
    if files_config.format == "csv":
        files_config = as_written(paths[0], files_config)
    files_config, found, chosen = _profile_as_readable(paths, files_config, labels, progress)
    guesses = guess(found, chosen)
    if not _needs_embeddings(guesses):
        guesses = _with_numbers(guesses, found)
    _check_features(paths[0], guesses)
    files_config = replace(files_config, missing=guesses.missing)
    config = TableConfig(
        data=files_config,
        columns={name: guessed.config for name, guessed in guesses.columns.items()},
        labels=guesses.labels,
        time=guesses.time,
        group=guesses.group,
    )
    rows, contradiction = _rows_as_read(config, progress)
    guesses = _without_useless(guesses, config, rows)
    _check_features(paths[0], guesses)
    shown = tuple(relpath(name, directory) if not Path(name).is_absolute() else name for name in files)
    named = name or Path(files[0]).name.split(".")[0]
    name = re.sub(r"[^0-9A-Za-z_-]+", "-", named).strip("-") or "table"
    return FirstRecipe(
        text="\n".join(_lines(name, replace(files_config, files=shown), found, guesses)) + "\n",
        name=name,
        num_rows=found.num_rows,
        guesses=guesses,
        contradiction=contradiction,
        copies=_copies(found),
    )


def _profile_as_readable(
    paths: Sequence[Path], config: FilesConfig, labels: Sequence[str], progress: Progress
) -> tuple[FilesConfig, Profile, dict[str, str]]:
    """Profile the files. If they cannot be read, try the encoding or quoting that the error suggests."""
    try:
        return config, *_profile(paths, config, labels, progress)
    except DataError as error:
        change = next((change for remedy, change in _REMEDIES.items() if remedy in str(error)), {})
        changed = replace(config, **change)
        if config.format != "csv" or changed == config:
            raise
        try:
            found = _profile_as_readable(paths, changed, labels, progress)
        except DataError:
            raise error from None
        if changed.quote == "none" and any(map(_is_quoted, found[1].columns.values())):
            raise
        return found


def _is_quoted(column: Column) -> bool:
    """Whether any value is enclosed in double quotes, in which case `quote: none` is wrong."""
    return column.is_text and bool(pc.any(pc.match_substring_regex(column.values, r'^".*"$')).as_py())


def _profile(
    paths: Sequence[Path], config: FilesConfig, labels: Sequence[str], progress: Progress
) -> tuple[Profile, dict[str, str]]:
    names = {path.absolute(): names_in(path, config) for path in paths}
    chosen = labels_among(list(dict.fromkeys(name for of_file in names.values() for name in of_file)), labels)
    return profile(scan(paths, config).extents, config, names, chosen, progress=progress), chosen


def _check_features(path: Path, guesses: Guesses) -> None:
    if any(column.config.is_feature for column in guesses.columns.values()):
        return
    whys = [f"{name!r} ({column.why})" for name, column in guesses.columns.items() if column.config.role == "ignored"]
    ignored = f" Ignored: {', '.join(whys[:_MAX_SHOWN])}{', …' * (len(whys) > _MAX_SHOWN)}." if whys else ""
    remedy = "Correct these columns, or provide" if whys else "Provide"
    raise DataError(
        f"{path} has no column besides the label that can be used as a feature.{ignored} {remedy} files with more "
        "columns."
    )


def _rows_as_read(config: TableConfig, progress: Progress) -> tuple[pa.Table, DataError | None]:
    """Read a sample of the rows as `prepare` does, and return it with the error for the first invalid row, if any."""
    raw = read_table(config, Path())
    assert isinstance(raw.rows, StreamedRows)
    step, done, parts, refusal = max(1, len(raw.rows) // _LEAK_ROWS), 0, list[pa.RecordBatch](), None
    try:
        for batch in raw.rows.batches():
            parts.append(batch.take(pa.array(np.arange(-done % step, batch.num_rows, step))))
            done += batch.num_rows
            progress.update(done, len(raw.rows), f"{done:,} rows read by the recipe")
    except DataError as error:
        refusal = error
    return pa.Table.from_batches(parts, raw.rows.schema), refusal


def _without_useless(guesses: Guesses, config: TableConfig, rows: pa.Table) -> Guesses:
    useless = dict.fromkeys(_empty_at_first(guesses, rows), "no value in the oldest rows, on which models train")
    for label, label_config in config.labels.items():
        leaks = find_leaks(rows, config.columns, rows[names_of(config)[label]], label, label_config)
        useless |= {name: f"a likely leak: {why}" for name, why in leaks.items()}
    columns = dict(guesses.columns)
    for name, why in useless.items():
        columns[name] = Guess(config=ColumnConfig(type=config.columns[name].type, role="ignored"), why=why)
    for name, guessed in columns.items():
        if guessed.config.of in useless:
            columns[name] = replace(guessed, config=replace(guessed.config, role="multihot", of=None))
    time = None if guesses.time in useless else guesses.time
    group = None if guesses.group in useless else guesses.group
    return replace(guesses, columns=columns, time=time, group=group)


def _empty_at_first(guesses: Guesses, rows: pa.Table) -> Iterator[str]:
    """If the rows are split by time, yield the features that have no value in the training rows."""
    if _splits_by_time(guesses):
        order = pc.array_sort_indices(rows[guesses.time], null_placement="at_start")
        oldest = rows.take(order.slice(0, round(len(rows) * (1 - RowsConfig.valid_share))))
        for name, guessed in guesses.columns.items():
            if guessed.config.is_feature and oldest[name].null_count == len(oldest):
                yield name


def _copies(found: Profile) -> str:
    columns = {name: column.values for name, column in found.columns.items() if not column.unusable}
    if any(holds_lists(values.type) for values in columns.values()):
        return ""
    rows = pa.table(columns)
    num_distinct = len(rows.group_by(rows.column_names).aggregate([]))
    # Without a column of many values, different rows may be equal by chance.
    if not any(column.num_distinct > num_distinct / 2 for column in found.columns.values()):
        return ""
    num_copies = len(rows) - num_distinct
    if num_copies < _MANY_COPIES * len(rows):
        return ""
    return (
        f"{num_copies:,} of {len(rows):,} rows repeat another row in every column. If they are copies, remove them: "
        "where training and validation rows are the same, the quality looks too good."
    )


# --- The text of the file


def _lines(name: str, config: FilesConfig, found: Profile, guesses: Guesses) -> Iterable[str]:
    yield f"# Written by rankline init, from {found.num_rows:,} rows. Correct any wrong guesses."
    yield "# `rankline init --print-schema` prints the allowed keys and values, also for editors."
    yield ""
    yield f"name: {_flow(name)}"
    yield ""
    yield "data:"
    yield f"  files: {_flow(list(config.files))}  # relative to this file; may be directories and patterns"
    yield f"  format: {config.format}"
    if config.format == "csv":
        yield f"  delimiter: {_flow(config.delimiter)}"
        if config.quote != FilesConfig.quote:
            yield f"  quote: {config.quote}  # quotes are ordinary characters"
        if not config.header:
            yield "  header: false  # the first line looks like data"
        if config.encoding != "utf-8":
            yield f"  encoding: {config.encoding}"
        yield f"  missing: {_flow(list(config.missing))}  # where a number, time or label is missing"
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
    split = "time" if _splits_by_time(guesses) else "random"
    yield "rows:"
    yield f"  split: {split}  # random, time (validate on the latest rows; needs time:), group (needs group:)"
    yield f"  valid_share: {RowsConfig.valid_share}"
    yield ""
    yield "# role: id, categorical, text, multihot, history, numeric, vector, timestamp, group or ignored"
    yield "columns:"
    for column, guessed in guesses.columns.items():
        missing = found.columns[column].missing_share
        nulls = f"; {missing:.2%} missing" if 0 < missing < 1 else ""
        yield f"  {_flow(column)}: {_flow(_choices(guessed.config))}  # {_comment(guessed.why)}{nulls}"
    yield ""
    yield "prepare:"
    yield "  frequency_threshold: 0  # values seen less often share an id; a column may have its own"
    yield "  hash_buckets: 0  # number of ids for unseen values, chosen by their hash"
    yield ""
    run = table_defaults(found.num_rows) if _needs_embeddings(guesses) else TrainConfig(model=AutoConfig())
    yield "model:  # or another one, such as lightgbm: docs/reference/models.md"
    yield f"  name: {run.model.name}"
    yield from (f"  {name}: {_flow(value)}" for name, value in _choices(run.model).items())
    if choices := _choices(run):
        yield "training:"
        yield from (f"  {name}: {_flow(value)}" for name, value in choices.items())
    yield ""
    yield "serving:"
    yield "  max_batch_size: 65536"


def _needs_embeddings(guesses: Guesses) -> bool:
    """Whether a neural network is the better default: for ids, lists and histories, and for several labels."""
    configs = [guessed.config for guessed in guesses.columns.values()]
    return len(guesses.labels) > 1 or any(config.role == "id" or config.is_list for config in configs)


def _with_numbers(guesses: Guesses, found: Profile) -> Guesses:
    """Return the guesses for a model with trees: numbers with few values stay numbers, and missing ones are marked."""
    columns = dict(guesses.columns)
    for name, guessed in columns.items():
        config, why = guessed.config, guessed.why
        if config.role == "categorical" and config.type in ("int", "float"):
            config, why = replace(config, role="numeric"), why.removesuffix(SO_A_CATEGORY)
        if config.role == "numeric" and found.columns[name].missing_share and f"{name}{FILLED}" not in columns:
            config = replace(config, missing_indicator=True)
        columns[name] = replace(guessed, config=config, why=why)
    return replace(guesses, columns=columns)


def _splits_by_time(guesses: Guesses) -> bool:
    return guesses.time is not None and "hour" in guesses.columns[guesses.time].config.parts


def _choices(config: ColumnConfig | ModelConfig | TrainConfig) -> dict[str, Any]:
    """Return a config's non-default settings, excluding the model. A column's type and role are always included."""
    usual, always = type(config)(), ("type", "role")
    found = {choice.name: getattr(config, choice.name) for choice in fields(config) if choice.name != "model"}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in found.items()
        if name in always or value != getattr(usual, name)
    }


class _OneLine(yaml.SafeDumper):
    """A YAML dumper that quotes and escapes strings with line breaks, to keep them on one line."""


_OneLine.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style='"' if len(text.splitlines()) > 1 or text != text.strip() else None
    ),
)


def _flow(value: Any) -> str:
    text = yaml.dump(
        value, Dumper=_OneLine, default_flow_style=True, allow_unicode=True, width=float("inf"), sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _comment(text: str) -> str:
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


_SMALL, _MEDIUM, _LARGE = 10_000, 50_000, 500_000


def table_defaults(num_rows: int) -> TrainConfig:
    """Return the default training config and neural network for a table with `num_rows` rows."""
    model = MLPConfig(
        hidden=(256, 256),
        number_dim=8,
        embedding_dim=8,
        linear_terms=False,
        dropout=0.3 if num_rows <= _SMALL else 0.1,
    )
    sizes = ((_SMALL, 128, 20), (_MEDIUM, 256, 24), (_LARGE, 1024, 8))
    batch_size, epochs = next(((size, epochs) for most, size, epochs in sizes if num_rows <= most), (4096, 3))
    return TrainConfig(
        model=model,
        optimizer="adam",
        learning_rate=2e-3,
        learning_rate_decay="cosine",
        weight_decay=0.1 if num_rows <= _SMALL else 0.05,
        weight_averaging=num_rows <= _SMALL,
        batch_size=batch_size,
        epochs=epochs,
        early_stopping_patience=6,
    )
