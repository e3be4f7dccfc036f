"""convert: rewrite the splits of prepared data in another file format."""

import shutil
from dataclasses import replace
from pathlib import Path

from rankline.training.data.loader.tfrecord import parquet_from_tfrecords, write_tfrecords
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.preprocess.prepared_data import KIND, PreparedData
from rankline.workflows.schema.feature_spec import FILE_NAME, SOURCE_TYPES, TFRECORD, Source
from rankline.workflows.storage.artifacts import publish, refuse_foreign

_VALID = "valid"


def convert(
    prepared: Path,
    output: Path,
    to: str,
    *,
    prebatch: int = 1,
    prebatch_valid: int | None = None,
    progress: Progress = SILENT,
) -> PreparedData:
    """Publish prepared data with its splits in another format.

    The workflow, held-out rows, catalog and metadata stay the same. The result is an artifact with its own fingerprint,
    so it does not match models and checkpoints of the original data.
    """
    sizes = {_VALID: prebatch if prebatch_valid is None else prebatch_valid}
    if to not in SOURCE_TYPES:
        raise ConfigError(f"unknown output format {to!r}. Available: {', '.join(SOURCE_TYPES)}.")
    for size in (prebatch, *sizes.values()):
        if size < 1 or (size > 1 and to != TFRECORD):
            raise ConfigError(f"prebatch is {size}, expected 1 or more for {TFRECORD} and exactly 1 for other formats.")
    refuse_foreign(output, KIND)
    data = PreparedData.load(prepared)
    spec, manifest = data.spec, data.manifest
    old = {split: source for split, source in spec.sources.items() if source.type != to}
    if not old:
        raise ConfigError(f"{prepared} already contains {to}, so there is nothing to convert.")
    new: dict[str, Source] = {}
    converted = {FILE_NAME, *(name for source in old.values() for name in source.files)}
    made_from = {**manifest.made_from, KIND: manifest.fingerprint}
    details = {**manifest.details, "converted": {"to": to, "prebatch": prebatch, "prebatch_valid": sizes[_VALID]}}
    with publish(output, KIND, made_from=made_from, details=details) as staging:
        for name in manifest.files.keys() - converted:
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(prepared / name, staging / name)
        total = sum(source.num_rows for source in old.values())
        for split, source in old.items():
            files, done = [prepared / name for name in source.files], sum(source.num_rows for source in new.values())
            share = _Share(progress, before=done, num_rows=source.num_rows, total=total)
            if to == TFRECORD:
                size = sizes.get(split, prebatch)
                written = write_tfrecords(files, spec, staging / split, prebatch=size, progress=share)
            else:
                written = parquet_from_tfrecords(files, spec, staging / split, progress=share)
            new[split] = replace(source, files=tuple(f"{split}/{path.name}" for path in written), type=to)
        new_spec = replace(spec, sources={**spec.sources, **new})
        (staging / FILE_NAME).write_text(new_spec.to_yaml(), encoding="utf-8")
    return PreparedData.published(output)


class _Share(Progress):
    def __init__(self, whole: Progress, *, before: int, num_rows: int, total: int) -> None:
        self._whole, self._before, self._num_rows, self._total = whole, before, num_rows, total

    def update(self, done: float, total: float, note: str = "") -> None:  # noqa: ARG002  (replaced by a note for all splits)
        rows = self._before + round(done / total * self._num_rows)
        self._whole.update(rows, self._total, f"{rows:,} of {self._total:,} rows converted")
