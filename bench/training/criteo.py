"""The results table of NVIDIA's Criteo notebook: both pipelines, with and without mixed precision and XLA.

Generated Criteo rows are prepared, and written as Parquet and as TFRecord. Each run of the table (see
`bench.peers.native`) trains the recipe's DLRM for the same number of steps, in turns with the others, and is evaluated
on the validation rows. Further sides are both pipelines with small dense layers, and without a model; the matrix
products of a step alone, which limit both pipelines equally; the recipe as in `rankline train`; and its step on a
single batch in memory. Finally, models with small layers are trained on all rows in each precision, with a different
seed in each repeat, to compare AUC.

This differs from the notebook in several ways. Batches have 4,096 rows instead of 65,536, because one such step would
take a whole turn. Tables have a hundredth of the rows. On both sides, Adam skips table rows that a batch did not look
up, because Keras's Adam updates whole tables in each step. Mixed precision is bfloat16, for which CPUs have
instructions; float16 is included with the small models.
"""

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.fixtures import prepare_rows, with_small_layers
from bench.harness.report import Rates, Report, Turn, median_ratio, medians, scratch_directory, take_turns
from bench.harness.steps import WARMUP_STEPS, endless, one_batch, products, read_for, train_for, with_loader
from bench.peers.native import feature_columns, make_dataset, peer
from rankline.recipes import recipe_named
from rankline.recipes.workspace import Workspace
from rankline.training.config.train import TrainConfig
from rankline.training.data.loader.tfrecord import write_tfrecords
from rankline.training.models.config import PRECISIONS
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.prepared_data import PreparedData

CRITEO = "criteo-dlrm"
_ONE_BATCH = f"{CRITEO}, one batch"
_NOTEBOOK: dict[str, Any] = {
    "optimizer": "lazy_adam",
    "learning_rate": 1e-3,
    "learning_rate_decay": "none",
    "warmup_steps": 0,
    "table_lr_scale": None,
    "embedding_init": 0.0,
    "weight_averaging": False,
}
_SMALL, _NO_MODEL, _PRODUCTS = "small layers", "no model", "products of matrices"
_SMALL_BATCH_SIZE = 1_024
_MIN_S = 1e-9  # minimum time per row, since a step may be as fast as its products


@dataclass(frozen=True, kw_only=True)
class Variant:
    precision: str = "float32"
    xla: bool = False

    @property
    def words(self) -> list[str]:
        return [word for word, holds in ((self.precision, self.precision != "float32"), ("xla", self.xla)) if holds]

    def of(self, config: TrainConfig) -> TrainConfig:
        return replace(config, precision=self.precision, xla=self.xla)


VARIANTS = tuple(Variant(precision=name, xla=xla) for name in ("float32", "bfloat16") for xla in (False, True))


def run_criteo(
    repeats: int,
    *,
    num_rows: int = 200_000,
    variants: Sequence[Variant] = VARIANTS,
    precisions: Sequence[str] = PRECISIONS,
    batch_size: int = 4_096,
    turn_steps: int = 6,
    turn_s: float = 5.0,
) -> Report:
    with scratch_directory() as directory:
        recipe = recipe_named(CRITEO)
        prepared = prepare_rows(
            Workspace(recipe=CRITEO, root=directory, repository=directory / "repository"),
            replace(recipe, encoding=RowsConfig(split="random")),
            num_rows,
        )
        config = replace(recipe.train, batch_size=batch_size)
        pipelines = {
            accelerated: _Pipeline(prepared, directory / "tfrecord", config, accelerated=accelerated)
            for accelerated in (False, True)
        }
        runs = {
            _name(key, *variant.words): _Run(pipeline, variant.of(pipeline.config))
            for variant in variants
            for key, pipeline in pipelines.items()
        }
        small_runs = {
            _name(key, _SMALL): _Run(pipeline, with_small_layers(pipeline.config))
            for key, pipeline in pipelines.items()
        }
        sides: dict[str, Turn] = {
            **{side: partial(run.turn, turn_steps) for side, run in runs.items()},
            **{side: partial(train_for, run.fit, run.batches, turn_s) for side, run in small_runs.items()},
            **{_name(key, _NO_MODEL): partial(pipeline.reading_rate, turn_s) for key, pipeline in pipelines.items()},
            _PRODUCTS: products(runs[_name(False, *variants[0].words)].fit, batch_size, turn_s),
            CRITEO: with_loader(prepared.path, prepared.spec, config, turn_s),
            _ONE_BATCH: one_batch(prepared.path, prepared.spec, config, turn_s),
        }
        rates = take_turns(sides, repeats)
        results = medians(rates, "rows_per_s")
        for side, run in runs.items():
            results[side]["auc"] = run.auc()
        small = replace(with_small_layers(config), batch_size=_SMALL_BATCH_SIZE, weight_averaging=False)
        aucs = {
            precision: [_auc(prepared, replace(small, precision=precision, seed=seed)) for seed in range(repeats)]
            for precision in precisions
        }
    results |= {f"{_SMALL}, {precision}": {"auc": statistics.fmean(values)} for precision, values in aucs.items()}
    return Report(name="training", results=results, ratios=_ratios(rates, variants, aucs))


class _Pipeline:
    def __init__(self, prepared: PreparedData, records: Path, config: TrainConfig, *, accelerated: bool) -> None:
        self.accelerated, self.spec, self.config = accelerated, prepared.spec, config.with_choices(**_NOTEBOOK)
        self._columns = feature_columns(self.spec, self.config.model, accelerated=accelerated)
        self._files = {}
        for split in ("train", "valid"):
            files = [prepared.path / file for file in self.spec.source(split).files]
            self._files[split] = files if accelerated else write_tfrecords(files, self.spec, records / split)

    def dataset(self, split: str) -> Any:
        return make_dataset(
            self._files[split], self.spec, self._columns, self.config.batch_size, accelerated=self.accelerated
        )

    def reading_rate(self, turn_s: float) -> float:
        return read_for(endless(self.dataset("train")), turn_s)


class _Run:
    def __init__(self, pipeline: _Pipeline, config: TrainConfig) -> None:
        self._pipeline = pipeline
        self.fit = TensorFlowTrainer(pipeline.spec, peer(config, accelerated=pipeline.accelerated), num_steps=1)
        batches = endless(pipeline.dataset("train"))
        # XLA would recompile for the smaller last batch of an epoch.
        self.batches = (batch for batch in batches if batch[1].shape[0] == config.batch_size)

    def turn(self, num_steps: int) -> float:
        for batch in islice(self.batches, WARMUP_STEPS):
            self.fit.step(*batch)
        begin = time.perf_counter()
        for batch in islice(self.batches, num_steps):
            self.fit.step(*batch)
        return num_steps * self._pipeline.config.batch_size / (time.perf_counter() - begin)

    def auc(self) -> float:
        return _scored(self.fit, self._pipeline.dataset("valid"))


def _auc(prepared: PreparedData, config: TrainConfig) -> float:
    batches = partial(
        TensorFlowTrainer.batches, prepared.path, prepared.spec, batch_size=config.batch_size, seed=config.seed
    )
    train, valid = batches(split="train", shuffle=True), batches(split="valid", shuffle=False)
    trainer = TensorFlowTrainer(prepared.spec, config, num_steps=len(train))
    for inputs, labels in train:
        trainer.step(inputs, labels)
    return _scored(trainer, valid)


def _scored(trainer: TensorFlowTrainer, batches: Iterable[Any]) -> float:
    scored = [(trainer.array(labels), trainer.score(inputs)) for inputs, labels in batches]
    labels, scores = (np.concatenate(column) for column in zip(*scored, strict=True))
    return exact_auc(labels, scores)


def _name(accelerated: bool, *words: str) -> str:
    return ", ".join(["accelerated" if accelerated else "native", *words])


def _ratios(rates: Rates, variants: Sequence[Variant], aucs: Mapping[str, Sequence[float]]) -> dict[str, float]:
    def accelerated_over_native(*words: str) -> float:
        return median_ratio(rates, _name(True, *words), _name(False, *words))

    plain, *mixed = (statistics.fmean(values) for values in aucs.values())
    return {
        **{"_".join(["vs_tfrecord", *variant.words]): accelerated_over_native(*variant.words) for variant in variants},
        "vs_tfrecord_beside_products": median_ratio(_beside_products(rates, variants[0]), _name(True), _name(False)),
        "vs_tfrecord_small_layers": accelerated_over_native(_SMALL),
        "data_vs_tfrecord": accelerated_over_native(_NO_MODEL),
        "vs_step_alone": median_ratio(rates, CRITEO, _ONE_BATCH),
        "amp_auc_difference": max(abs(auc - plain) for auc in mixed),
    }


def _beside_products(rates: Rates, variant: Variant) -> Rates:
    """Return the rows per second of both pipelines, excluding the time of the matrix products, turn by turn."""
    return {
        _name(key): [
            1 / max(1 / rate - 1 / product, _MIN_S)
            for rate, product in zip(rates[_name(key, *variant.words)], rates[_PRODUCTS], strict=True)
        ]
        for key in (False, True)
    }
