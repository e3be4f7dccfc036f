"""Parquet files with `metadata.json`, the first way of NVIDIA's SIM for TensorFlow 2 to bring data of one's own.

    metadata.json   {"cardinalities": [{"name": …, "value": …}, …]}, of user features, then of item features
    train/, test/   part.0.parquet, part.1.parquet, … with the columns label, user features, and the item features
                    three times: of the item to score, of the positive history and of the negative history

What a column is follows from its place. Names are those of the files.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.data_set import DataSet
from workflows.errors import ConfigError, DataError, SpecError
from workflows.feature_spec import LABEL, SEQUENCE_CHANNELS
from workflows.plain_values import holds_lists
from workflows.prepared import CARDINALITIES
from workflows.regular_files import read_regular
from workflows.spec_file import PARQUET, Chunk, Feature, SpecFile
from workflows.words import natural_order

TRAIN, TEST = "train", "test"
_MOST_CARDINALITIES_BYTES = 1 << 20
ANY_LENGTH = np.iinfo(np.int32).max
"""Longest list of a column of which nobody says it; Arrow's lists cannot be longer."""


def parquet_data_set(directory: Path, num_user_features: int | None, num_item_features: int | None) -> DataSet:
    """Files that nothing but `metadata.json` describes, as a `feature_spec.yaml` would.

    Args:
        directory: that holds them.
        num_user_features, num_item_features: None counts them.

    Raises:
        SpecError: `metadata.json` is not valid, or a part is missing.
        ConfigError: the numbers of columns, of cardinalities and of features do not go together.
        DataError: the first file is damaged.
    """
    path = directory / CARDINALITIES
    cardinalities = _read_cardinalities(path)
    found = {
        mapping: sorted((directory / mapping).glob("*.parquet"), key=lambda path: natural_order(path.name))
        for mapping in (TRAIN, TEST)
    }
    if empty := [mapping for mapping, paths in found.items() if not paths]:
        raise SpecError(f"{directory / empty[0]} holds no Parquet files. Expected some in {TRAIN} and in {TEST}.")
    schema = _schema_of(found[TRAIN][0])
    users, items = _num_features(path, schema.names, len(cardinalities), num_user_features, num_item_features)
    ids = [*cardinalities, *cardinalities[users:], *cardinalities[users:]]
    label, *names = schema.names
    features = [Feature(name=label, dtype=_numpy_name(schema.field(label).type))]
    for name, cardinality in zip(names, ids, strict=True):
        kind = schema.field(name).type
        is_list = holds_lists(kind)
        features.append(
            Feature(
                name=name,
                dtype=_numpy_name(kind.value_type if is_list else kind),
                cardinality=cardinality,
                is_list=is_list,
                max_length=ANY_LENGTH if is_list else None,
            )
        )
    bounds = np.cumsum([0, users, items, items, items])
    channels = {
        channel: tuple(names[first:last])
        for channel, first, last in zip(SEQUENCE_CHANNELS, bounds[:-1], bounds[1:], strict=True)
    }
    mappings = {}
    for mapping, paths in found.items():
        files = tuple(path.relative_to(directory).as_posix() for path in paths)
        mappings[mapping] = (Chunk(type=PARQUET, features=tuple(schema.names), files=files),)
    spec = SpecFile(features=tuple(features), mappings=mappings, channels={LABEL: (label,), **channels})
    return DataSet(spec=spec, path=path)


def _read_cardinalities(path: Path) -> list[int]:
    try:
        document = json.loads(read_regular(path, _MOST_CARDINALITIES_BYTES))
        found = [entry["value"] for entry in document["cardinalities"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SpecError(
            f'{path} cannot be read ({error!r}). Expected {{"cardinalities": [{{"name": …, "value": …}}, …]}}.'
        ) from None
    if wrong := [value for value in found if type(value) is not int or value < 1]:
        raise SpecError(f"{path}: a cardinality is {wrong[0]!r}, expected a whole number of at least 1.")
    return found


def _schema_of(path: Path) -> pa.Schema:
    """Columns of a Parquet file, without pandas' index."""
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a whole Parquet file ({error}). Write it again.") from None
    index = (schema.pandas_metadata or {}).get("index_columns", ())
    return pa.schema([field for field in schema if field.name not in index])


def _num_features(
    path: Path, columns: Sequence[str], num_cardinalities: int, users: int | None, items: int | None
) -> tuple[int, int]:
    """How many user and item features there are: a label, each user feature once, each item feature three times."""
    counted, odd = divmod(len(columns) - 1 - num_cardinalities, 2)
    items = counted if items is None and not odd else items
    if items is not None and users is None:
        users = num_cardinalities - items
    if users is None or items is None or users < 0 or items < 1 or 1 + users + 3 * items != len(columns):
        raise ConfigError(
            f"{path} has {num_cardinalities} cardinalities, the Parquet files have {len(columns)} columns {columns}. "
            "Expected a label, U user features and 3 × I item features, and U + I cardinalities."
        )
    if users + items != num_cardinalities:
        raise ConfigError(
            f"{path} has {num_cardinalities} cardinalities, expected {users} of user features and {items} of item "
            "features. Correct it, or the numbers of features."
        )
    return users, items


def _numpy_name(kind: pa.DataType) -> str:
    try:
        name: str = np.dtype(kind.to_pandas_dtype()).name
        return name
    except (NotImplementedError, TypeError):
        return "object"  # which reading refuses, with the column
