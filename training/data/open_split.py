"""Opening of splits of prepared data, in any file format."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from rankline.training.data.loader.files import ParquetFiles
from rankline.training.data.loader.stream import Batch, BatchStream, StreamOptions
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.schema.feature_spec import HISTORY, PARQUET, TFRECORD, FeatureSpec, Source
from rankline.workflows.schema.ragged import Ragged, offsets_of
from rankline.workflows.schema.tensor_names import NNZS, VALUES

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rankline.training.data.loader.epochs import ParquetLoader
    from rankline.training.data.loader.tensorflow import KerasSequenceLoader
    from rankline.training.data.loader.tfrecord import TFRecordLoader

L = TypeVar("L", bound="ParquetLoader[Any]")


class Reading(TypedDict, total=False):
    """Options that the loaders of all formats share; see `BatchStream` for their meaning and defaults."""

    drop_last: bool
    prefetch: int | None
    num_threads: int | None


def tensorflow_loader(
    prepared: Path,
    spec: FeatureSpec,
    split: str,
    batch_size: int,
    *,
    shuffle: bool,
    seed: int,
    global_rank: int = 0,
    global_size: int = 1,
    **reading: "Unpack[Reading]",
) -> "KerasSequenceLoader | TFRecordLoader":
    """Open a split for a TensorFlow model. Batches have the same structure for all formats."""
    source = spec.source(split)
    if reading.get("drop_last") and 0 < source.num_rows < batch_size:
        raise DataError(
            f"there is no batch of {batch_size:,} rows in the {split} data, which has {source.num_rows:,}. "
            "Take smaller batches, or keep the last one."
        )
    if source.type == TFRECORD:
        files = [prepared / name for name in source.files]
        if source.part:
            raise ConfigError(
                f"the {split} data is {TFRECORD}, of which no part can be held out to choose the epoch. Train a fixed "
                "number of epochs (early_stopping_patience 0), let the validation rows choose (epoch_holdout 'valid'), "
                f"or convert it back: rankline convert RECIPE --to {PARQUET}"
            )
        if len(spec.labels) > 1:
            check_parquet(spec, reader="a model of several labels")
        if global_size > 1:
            check_parquet(spec, reader="a run with several workers")
        loader = _tfrecord_loader(files, spec, batch_size, source.num_rows, shuffle=shuffle, seed=seed, **reading)
    else:
        share: StreamOptions = {"global_rank": global_rank, "global_size": global_size}
        options: StreamOptions = {**reading, **share, "shuffle": shuffle, "seed": seed}
        loader = _parquet_loader(parquet_files(prepared, source), spec, batch_size, options)
    if not loader.num_rows:
        raise DataError(f"the {split} data in {prepared} has no rows. Prepare it from more data.")
    return loader


def parquet_split(
    make: Callable[[ParquetFiles, StreamOptions], L],
    prepared: Path,
    spec: FeatureSpec,
    split: str,
    *,
    shuffle: bool,
    seed: int,
    rank: int,
    size: int,
) -> L:
    share: StreamOptions = {"global_rank": rank, "global_size": size}
    options: StreamOptions = {**checks_of(spec), **share, "shuffle": shuffle, "seed": seed}
    loader = make(parquet_files(prepared, spec.source(split)), options)
    if not loader.num_rows:
        raise DataError(f"the {split} data in {prepared} has no rows. Prepare it from more data.")
    return loader


def _tfrecord_loader(
    files: list[Path],
    spec: FeatureSpec,
    batch_size: int,
    num_rows: int,
    *,
    shuffle: bool,
    seed: int,
    **reading: "Unpack[Reading]",
) -> "KerasSequenceLoader | TFRecordLoader":
    from rankline.training.data.loader.tfrecord import TFRecordLoader

    return TFRecordLoader(files, spec, batch_size, num_rows=num_rows, shuffle=shuffle, seed=seed, **reading)


def parquet_files(prepared: Path, source: Source) -> ParquetFiles:
    """Open the files of a Parquet source, limited to the part that the source selects."""
    return ParquetFiles([prepared / name for name in source.files], source.part)


def _parquet_loader(
    files: ParquetFiles, spec: FeatureSpec, batch_size: int, choices: StreamOptions
) -> "KerasSequenceLoader":
    from rankline.training.data.loader.tensorflow import KerasSequenceLoader

    options: StreamOptions = {**checks_of(spec), **choices}
    if spec.is_sequential:
        options["bucket_by"] = spec.channel(HISTORY)[0].name
    return KerasSequenceLoader(
        files,
        batch_size,
        [label.name for label in spec.labels],
        stack_labels=True,
        cat_names=[feature.name for feature in spec.categorical],
        cont_names=[feature.name for feature in spec.continuous],
        **options,
    )


def checks_of(spec: FeatureSpec) -> StreamOptions:
    """Derive loader options from a spec: the range of ids, replacements for nulls, and finite labels.

    With several labels a row may lack some, and NaN marks a missing label.
    """
    masked = {label.name: math.nan for label in spec.labels if len(spec.labels) > 1}
    filled = {feature.name: feature.null_fill for feature in spec.features if feature.null_fill is not None}
    return {
        "cardinalities": {feature.name: feature.embedding_shape[0] for feature in spec.categorical},
        "fill_nulls": masked | filled,
        "finite": [label.name for label in spec.labels if label.name not in masked],
    }


def first_rows(prepared: Path, spec: FeatureSpec, split: str, num_rows: int) -> Batch:
    """Return the inputs of the first rows of a split as arrays, in any file format.

    Imports TensorFlow only for TFRecord.
    """
    source, inputs = spec.source(split), (*spec.categorical, *spec.continuous)
    files = [prepared / name for name in source.files]
    if source.type != TFRECORD:
        dtypes = spec.model_dtypes
        options: StreamOptions = {**checks_of(spec), "shuffle": False}
        stream = BatchStream(files, list(dtypes), dtypes=dtypes, batch_size=num_rows, **options)
        return next(stream.batches())
    loader = _tfrecord_loader(files, spec, num_rows, source.num_rows, shuffle=False, seed=0)
    tensors, _ = next(iter(loader))
    columns = {name: tensor.numpy()[:, 0] for name, tensor in tensors.items()}
    return {
        feature.name: Ragged(values=columns[feature.name + VALUES], offsets=offsets_of(columns[feature.name + NNZS]))
        if feature.is_list
        else columns[feature.name]
        for feature in inputs
    }


def check_parquet(spec: FeatureSpec, *, reader: str) -> None:
    """Raise `ConfigError` if a split is not Parquet, on behalf of a reader that supports nothing else."""
    for split, source in spec.sources.items():
        if source.type != PARQUET:
            raise ConfigError(
                f"the {split} data is {source.type}, and {reader} reads {PARQUET} only. "
                f"Convert it back: rankline convert RECIPE --to {PARQUET}"
            )
