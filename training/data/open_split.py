"""Open the splits of prepared data, in any file format."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rankline.training.data.loader.columns import null_fills
from rankline.training.data.loader.files import ParquetFiles
from rankline.training.data.loader.stream import Batch, BatchStream, StreamOptions
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.schema.feature_spec import HISTORY, PARQUET, TFRECORD, FeatureSpec
from rankline.workflows.schema.ragged import Ragged, offsets_of
from rankline.workflows.schema.tensor_names import NNZS, VALUES

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rankline.training.data.loader.epochs import BatchLoader
    from rankline.training.data.loader.tensorflow import KerasSequenceLoader
    from rankline.training.data.loader.tfrecord import TFRecordLoader

L = TypeVar("L", bound="BatchLoader[Any] | TFRecordLoader")


def tensorflow_loader(
    prepared: Path, spec: FeatureSpec, split: str, batch_size: int, **options: "Unpack[StreamOptions]"
) -> "KerasSequenceLoader | TFRecordLoader":
    """Open a split for a TensorFlow model. Batches have the same structure for all formats.

    TFRecord supports the options `shuffle`, `seed`, `drop_last`, `prefetch` and `num_threads`.
    """
    source = spec.source(split)
    if options.get("drop_last") and 0 < source.num_rows < batch_size:
        raise DataError(
            f"the {split} data has {source.num_rows:,} rows, fewer than one batch of {batch_size:,}. Use smaller "
            "batches, or keep the last partial batch."
        )
    if source.type == TFRECORD:
        return _with_rows(_tfrecord_loader(prepared, spec, split, batch_size, options), prepared, split)
    from rankline.training.data.loader.tensorflow import KerasSequenceLoader

    def make(files: ParquetFiles, options: StreamOptions) -> KerasSequenceLoader:
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

    return parquet_split(make, prepared, spec, split, options)


def parquet_split(
    make: Callable[[ParquetFiles, StreamOptions], L],
    prepared: Path,
    spec: FeatureSpec,
    split: str,
    options: StreamOptions,
) -> L:
    """Open a Parquet split with a framework's loader, reading only the rows that the split selects."""
    source = spec.source(split)
    files = ParquetFiles([prepared / name for name in source.files], source.part)
    return _with_rows(make(files, {**checks_of(spec), **options}), prepared, split)


def _with_rows(loader: L, prepared: Path, split: str) -> L:
    if not loader.num_rows:
        raise DataError(f"the {split} data in {prepared} has no rows. Prepare it from more data.")
    return loader


def _tfrecord_loader(
    prepared: Path, spec: FeatureSpec, split: str, batch_size: int, options: StreamOptions
) -> "TFRecordLoader":
    from rankline.training.data.loader.tfrecord import TFRecordLoader

    source = spec.source(split)
    if source.part:
        raise ConfigError(
            f"the {split} data is {TFRECORD}, so no part of it can be held out to select an epoch. Train for a fixed "
            "number of epochs (early_stopping_patience 0), select the epoch on the validation rows (epoch_holdout "
            f"'valid'), or convert the data back: rankline convert RECIPE --to {PARQUET}"
        )
    if len(spec.labels) > 1:
        check_parquet(spec, reader="a model with several labels")
    if options.get("global_size", 1) > 1:
        check_parquet(spec, reader="a run with several workers")
    return TFRecordLoader(
        [prepared / name for name in source.files],
        spec,
        batch_size,
        num_rows=source.num_rows,
        shuffle=options["shuffle"],
        seed=options.get("seed", 0),
        drop_last=options.get("drop_last", False),
        prefetch=options.get("prefetch"),
        num_threads=options.get("num_threads"),
    )


def checks_of(spec: FeatureSpec) -> StreamOptions:
    """Derive loader options from a spec: valid id ranges, null replacements, and labels that must be finite."""
    return {
        "cardinalities": {feature.name: feature.embedding_shape[0] for feature in spec.categorical},
        "fill_nulls": null_fills(spec),
        "finite": [label.name for label in spec.labels if len(spec.labels) == 1],
    }


def first_rows(prepared: Path, spec: FeatureSpec, split: str, num_rows: int) -> Batch:
    """Return the inputs of the first rows of a split as arrays, in any file format."""
    source, dtypes = spec.source(split), spec.model_dtypes
    if source.type != TFRECORD:
        files = [prepared / name for name in source.files]
        options: StreamOptions = {**checks_of(spec), "shuffle": False}
        return next(BatchStream(files, list(dtypes), dtypes=dtypes, batch_size=num_rows, **options).batches())
    tensors, _ = next(iter(_tfrecord_loader(prepared, spec, split, num_rows, {"shuffle": False})))
    columns = {name: tensor.numpy()[:, 0] for name, tensor in tensors.items()}
    return {
        feature.name: Ragged(values=columns[feature.name + VALUES], offsets=offsets_of(columns[feature.name + NNZS]))
        if feature.is_list
        else columns[feature.name]
        for feature in (*spec.categorical, *spec.continuous)
    }


def check_parquet(spec: FeatureSpec, *, reader: str) -> None:
    """Raise `ConfigError` unless every split is Parquet, the only format that `reader` supports."""
    for split, source in spec.sources.items():
        if source.type != PARQUET:
            raise ConfigError(
                f"the {split} data is {source.type}, but {reader} reads only {PARQUET}. Convert it back: rankline "
                f"convert RECIPE --to {PARQUET}"
            )
