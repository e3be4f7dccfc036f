"""The `Dataset` for a table, built from a `TableConfig`.

Categories become ids of a vocabulary or hash buckets, numbers are scaled and their missing values become the mean, and
times are split into parts. Outputs have `safe_names`, because frameworks reject spaces and question marks; requests use
the names in the files.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.data.tabular.config import CATEGORIES, FILLED, ColumnConfig, TableConfig
from rankline.workflows.data.tabular.reader import TableRequests, names_of, read_table
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.dataset import Dataset
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.schema.targets import MULTICLASS, Head, output_names, score_names

if TYPE_CHECKING:
    from rankline.workflows.nvt.compat import nvt


def table_dataset(name: str, config: TableConfig, base: Path) -> Dataset:
    names = names_of(config)
    heads = tuple(
        Head(
            names[name],
            task=label.task,
            classes=label.classes if label.task == MULTICLASS else (),
            weight=label.weight,
        )
        for name, label in config.labels.items()
    )
    _check_score_names(heads)
    return Dataset(
        name=name,
        read=partial(read_table, config, base),
        graph=partial(table_graph, config),
        inputs=tuple(config.features),
        heads=heads,
        time=config.time,
        group_by=config.group,
        choices=config.choices,
        directory=base,
        requests=TableRequests(config),
    )


def _check_score_names(heads: Sequence[Head]) -> None:
    outputs = zip(output_names(heads), heads, strict=True)
    counts = Counter(name for output, head in outputs for name in score_names(output, head.classes))
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ConfigError(f"two labels would produce the same score name, {twice[0]!r}. Rename a label or a class.")


def table_graph(config: TableConfig, _raw: RawData, prepare: PrepareConfig, rows: RowsConfig) -> "nvt.Workflow":
    """Build the workflow that encodes the features and labels of a table."""
    if rows.split == "time" and config.time is None:
        raise ConfigError(
            "the rows cannot be split by time, because `time` is not set. Set it to the column that orders the rows, "
            "or split at random."
        )
    from rankline.workflows.nvt.compat import nvt, quiet_nvtabular

    with quiet_nvtabular():
        graph = _Graph(config, prepare)
        nodes = [*graph.categories(), *graph.lists(), *graph.numbers(), *graph.vectors(), *graph.times()]
        nodes += graph.labels()
        return nvt.Workflow(reduce(add, nodes))


class _Graph:
    def __init__(self, config: TableConfig, prepare: PrepareConfig) -> None:
        self._config, self._prepare, self._names = config, prepare, names_of(config)
        self._shared = {column.of for column in config.features.values() if column.of is not None}

    def categories(self) -> list[Any]:
        ways: dict[tuple[int, int, bool], list[str]] = defaultdict(list)
        for name, column in self._features(*CATEGORIES).items():
            if name not in self._shared:
                ways[(*self._encoding(column), column.type != "string")].append(name)
        return [self._ids(names) >> _encoder(*way) for way, names in ways.items()]

    def lists(self) -> list[Any]:
        """Encode multi-hot lists and histories, the latter together with the column whose vocabulary they share."""
        from rankline.workflows.nvt.operators import SharedCategorify

        nodes = [
            self._list(name, column) >> _encoder(*self._encoding(column))
            for name, column in self._features("multihot").items()
        ]
        for of in sorted(filter(None, self._shared)):
            histories = {name: column for name, column in self._features("history").items() if column.of == of}
            threshold, buckets = self._encoding(self._config.columns[of])
            together = reduce(add, (self._list(*history) for history in histories.items()), self._ids([of]))
            shared = {self._names[name]: self._names[of] for name in histories}
            nodes.append(together >> SharedCategorify(shared, freq_threshold=threshold, num_buckets=max(1, buckets)))
        return nodes

    def numbers(self) -> list[Any]:
        from rankline.workflows.nvt.compat import ops

        ways: dict[tuple[str, bool], list[str]] = defaultdict(list)
        for name, column in self._features("numeric").items():
            ways[column.scale, column.missing_indicator].append(name)
        nodes = []
        for (scale, has_indicator), names in ways.items():
            scaled = _scaled(self._raw(names), scale, has_indicator=has_indicator)
            if has_indicator:
                of_missing = [f"{self._names[name]}{FILLED}" for name in names]
                scaled = scaled[[self._names[name] for name in names]] + (
                    scaled[of_missing] >> ops.Normalize(out_dtype="float32")
                )
            nodes.append(scaled)
        return nodes

    def vectors(self) -> list[Any]:
        from rankline.workflows.nvt.operators import VectorElements

        return [
            _scaled(self._list(name, column) >> VectorElements({self._names[name]: column.length}), column.scale)
            for name, column in self._features("vector").items()
        ]

    def times(self) -> list[Any]:
        from rankline.workflows.nvt.dates import NUMERIC_PARTS
        from rankline.workflows.nvt.operators import DateParts, OrderedCategorify

        nodes = []
        times = self._features("timestamp")
        for kind in (True, False):
            parts = {
                self._names[name]: [part for part in column.parts if (part in NUMERIC_PARTS) == kind]
                for name, column in times.items()
            }
            names = [name for name in times if parts[self._names[name]]]
            if names:
                taken = self._raw(names) >> DateParts({self._names[name]: parts[self._names[name]] for name in names})
                nodes.append(_scaled(taken, "standard") if kind else taken >> OrderedCategorify())
        return nodes

    def labels(self) -> list[Any]:
        from rankline.workflows.nvt.compat import ops

        return [[self._names[name] for name in self._config.labels] >> ops.AddTags(["target"])]

    def _features(self, *roles: str) -> Mapping[str, ColumnConfig]:
        return {name: column for name, column in self._config.features.items() if column.role in roles}

    def _encoding(self, column: ColumnConfig) -> tuple[int, int]:
        own = column.frequency_threshold, column.hash_buckets
        of_all = self._prepare.frequency_threshold, self._prepare.hash_buckets
        threshold, buckets = (every if one is None else one for one, every in zip(own, of_all, strict=True))
        return threshold, buckets

    def _raw(self, names: list[str]) -> Any:
        from rankline.workflows.nvt.compat import nvt, ops

        kept = [name for name in names if self._names[name] == name]
        nodes = [nvt.ColumnSelector(kept)] if kept else []
        nodes += [[name] >> ops.Rename(name=self._names[name]) for name in names if name not in kept]
        return reduce(add, nodes)

    def _ids(self, names: list[str]) -> Any:
        from rankline.workflows.nvt.operators import EmptyToNull

        is_text = self._config.columns[names[0]].type == "string"
        return self._raw(names) >> EmptyToNull() if is_text else self._raw(names)

    def _list(self, name: str, column: ColumnConfig) -> Any:
        from rankline.workflows.nvt.compat import ops
        from rankline.workflows.nvt.operators import EmptyToNull, NullToEmptyList

        lists = self._raw([name]) >> NullToEmptyList()
        if column.type == "string":
            lists = lists >> EmptyToNull()
        return lists >> ops.ListSlice(-column.max_length) if column.max_length else lists


def _encoder(threshold: int, buckets: int, are_numbers: bool = False) -> Any:
    from rankline.workflows.nvt.operators import Categorify, HashedCategorify, OrderedCategorify

    if buckets:
        return HashedCategorify(freq_threshold=threshold, num_buckets=buckets)
    return (OrderedCategorify if are_numbers else Categorify)(freq_threshold=threshold)


def _scaled(columns: Any, scale: str, *, has_indicator: bool = False) -> Any:
    """Scale numeric columns, and replace missing and infinite values with the mean, or with 0 if `scale` is "none".

    With `has_indicator`, add a column NAME_filled that is 1 where a value was replaced.
    """
    from rankline.workflows.nvt.compat import ops
    from rankline.workflows.nvt.operators import Finite

    columns = columns >> Finite()
    if scale == "log":
        columns = columns >> ops.Clip(min_value=0) >> ops.LogOp()
    if scale != "none":
        columns = columns >> ops.Normalize(out_dtype="float32") >> Finite()  # a division may overflow
    return columns >> ops.FillMissing(0, add_binary_cols=has_indicator)
