"""Trainers of models that need all rows at once."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankline.training.config.train import TrainConfig
from rankline.training.data.loader.columns import Column
from rankline.training.data.loader.epochs import BatchLoader, Reading
from rankline.training.data.loader.files import ParquetFiles
from rankline.training.data.loader.stream import Batch, StreamOptions
from rankline.training.data.open_split import check_parquet, parquet_split
from rankline.training.evaluation import losses_of, objective_of
from rankline.training.models.factorization.tables import users_and_items
from rankline.training.trainers.base import Array, Trainer
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.optional_packages import require
from rankline.workflows.schema.feature_spec import FeatureSpec

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ArrayLoader(BatchLoader[tuple[dict[str, Column], Array]]):
    """A loader of prepared Parquet files that yields batches of NumPy arrays.

    A batch is `(inputs, labels)`. `inputs` maps names to ids int64 (N,), numbers float32 (N,) or lists (`Ragged`).
    `labels` is float32 (N,), or (N, number of labels).
    """

    def __init__(self, files: ParquetFiles, spec: FeatureSpec, batch_size: int, options: StreamOptions) -> None:
        cats, conts, self._labels = (
            [feature.name for feature in features] for features in (spec.categorical, spec.continuous, spec.labels)
        )
        self._set_up(files, batch_size, cats, conts, self._labels, options, stack_labels=len(self._labels) > 1)

    def _tensors(self, reading: Reading, batch: Batch) -> tuple[dict[str, Column], Array]:
        labels = [np.asarray(batch[name]) for name in self._labels]
        inputs = {name: batch[name] for name in reading.input_names}
        return inputs, labels[0] if len(labels) == 1 else np.stack(labels, axis=1)


class InMemoryTrainer(Trainer):
    """A trainer that keeps the rows of the first epoch in memory and fits the next part of the model after each epoch.

    The same rows in the same order give the same model, so the saved state consists of the rows. The loss of an epoch
    is computed on all rows at its end.
    """

    IN_ORDER = False
    """Whether to read rows in the order of the files, for models that depend on it."""

    _average = None

    def __init__(self, spec: FeatureSpec, config: TrainConfig, num_steps: int, **_: Any) -> None:
        self._spec, self._config = spec, config
        self.model: Any = config.model.build(spec, config)
        self._steps_per_epoch = max(1, num_steps // config.num_epochs)
        self._rows: list[Array] = []
        self._labels: list[Array] = []
        self._step, self._epochs_learned, self._loss_sum, self._added_sum = 0, 0, 0.0, 0.0

    @staticmethod
    def check(spec: FeatureSpec, config: TrainConfig, *, num_workers: int = 1) -> None:
        name = config.model.name
        if num_workers > 1:
            raise ConfigError(f"{name} supports only one worker, got {num_workers}. Use one worker.")
        if config.xla or config.precision != "float32":
            raise ConfigError(f"xla and precision apply only to neural networks, not to {name}. Omit both options.")
        check_parquet(spec, reader=name)

    @staticmethod
    def sees_gpu() -> bool:
        return False

    @staticmethod
    def deterministic() -> AbstractContextManager[None]:
        return nullcontext()

    @classmethod
    def batches(
        cls, prepared: Path, spec: FeatureSpec, split: str, batch_size: int, **options: "Unpack[StreamOptions]"
    ) -> ArrayLoader:
        options["shuffle"] = options["shuffle"] and not cls.IN_ORDER
        return parquet_split(
            lambda files, whole: ArrayLoader(files, spec, batch_size, whole), prepared, spec, split, options
        )

    def step(self, inputs: Mapping[str, Any], labels: Any) -> None:
        if self._step < self._steps_per_epoch:
            self._rows.append(self.model.matrix(inputs))
            self._labels.append(labels.reshape(len(labels), -1))
        self._step += 1
        if self._step % self._steps_per_epoch == 0:
            self._learn_epoch()
            rows, labels = self._rows[0], self.array(self._labels[0])
            self._loss_sum += len(rows) * losses_of(self._spec.heads, labels, self.array(self.model.scores(rows)))

    def _learn_epoch(self) -> None:
        if not self._epochs_learned:
            self._rows, self._labels = [np.concatenate(self._rows)], [np.concatenate(self._labels)]
            self._begin(self._rows[0], self.array(self._labels[0]))
        self._epochs_learned += 1
        self.model.learn(self._epochs_learned / self._config.num_epochs)

    def _begin(self, rows: Array, labels: Array) -> None:
        self.model.begin(rows, labels, self._config.seed)

    def diverged_at(self) -> int | None:
        return None

    def score(self, inputs: Mapping[str, Any]) -> Array:
        return self.array(self.model.scores(self.model.matrix(inputs)))

    def array(self, tensor: Any) -> Array:
        array: Array = tensor
        return array[:, 0] if array.ndim > 1 and array.shape[1] == 1 else array

    def state(self) -> dict[str, Array]:
        nothing = np.empty((0, self.model.width), self.model.row_dtype)
        labels = np.concatenate([np.empty((0, len(self._spec.heads)), np.float32), *self._labels])
        progress = {"step": np.array(self._step), "loss": np.array(self._loss_sum)}
        return {"rows": np.concatenate([nothing, *self._rows]), "labels": labels} | progress

    def restore(self, state: Mapping[str, Any]) -> None:
        self._rows, self._labels = [np.array(state["rows"])], [np.array(state["labels"])]
        self._step, self._loss_sum = int(state["step"]), float(state["loss"])
        for _ in range(self._step // self._steps_per_epoch):
            self._learn_epoch()


class TablesTrainer(InMemoryTrainer):
    PYFUNC = "rankline.training.export.saved_model"
    PACKAGES = ("tensorflow-cpu", "tensorflow")
    IN_ORDER = True

    @staticmethod
    def check(spec: FeatureSpec, config: TrainConfig, *, num_workers: int = 1) -> None:
        users_and_items(spec, config.model)  # type: ignore[arg-type]  # a TablesConfig
        InMemoryTrainer.check(spec, config, num_workers=num_workers)

    def num_parameters(self) -> tuple[int, int]:
        return sum(table.size for table in self.model.tables), 0

    def weights(self) -> list[Array]:
        return list(self.model.tables)

    def set_weights(self, weights: Sequence[Any]) -> None:
        self.model.tables = [np.asarray(table) for table in weights]

    def export(self, path: Path) -> None:
        from rankline.training.export.saved_model import export_saved_model

        export_saved_model(self.model.keras_model(), self._spec, path)


class LightGBMTrainer(InMemoryTrainer):
    """A LightGBM trainer that adds trees after each epoch. The trees do not depend on the number of threads."""

    PYFUNC = "rankline.training.export.onnx"
    PACKAGES = ("onnxruntime",)

    @staticmethod
    def check(spec: FeatureSpec, config: TrainConfig, *, num_workers: int = 1) -> None:
        for module in ("onnx", "onnxruntime"):
            require(module, feature="training 'lightgbm'", extra="lightgbm")
        InMemoryTrainer.check(spec, config, num_workers=num_workers)

    def num_parameters(self) -> tuple[int, int]:
        return 0, self.model.num_leaves()

    def weights(self) -> list[Array]:
        return [np.frombuffer(text.encode(), np.uint8) for text in self.model.texts()]

    def set_weights(self, weights: Sequence[Any]) -> None:
        self.model.load([bytes(text).decode() for text in weights])

    def export(self, path: Path) -> None:
        from rankline.training.models.lightgbm.onnx import to_onnx

        path.write_bytes(to_onnx(self.model).SerializeToString(deterministic=True))


class PortfolioTrainer(InMemoryTrainer):
    """A trainer of `rankline.training.models.auto`. A pass over the rows collects them; then all is learned at once."""

    PYFUNC = "rankline.training.export.onnx"
    PACKAGES = ("onnxruntime",)
    IN_ORDER = True

    def __init__(self, spec: FeatureSpec, config: TrainConfig, num_steps: int, **options: Any) -> None:
        super().__init__(spec, config, num_steps, **options)
        self.model.say = lambda note, share: self.say(note, share)

    @staticmethod
    def check(spec: FeatureSpec, config: TrainConfig, *, num_workers: int = 1) -> None:
        for module in ("onnx", "onnxruntime"):
            require(module, feature=f"training {config.model.name!r}", extra="onnx")
        config.model.check_packages()  # type: ignore[attr-defined]  # a PortfolioConfig
        InMemoryTrainer.check(spec, config, num_workers=num_workers)

    def _begin(self, rows: Array, labels: Array) -> None:
        in_order, first_rows = self.data.split == "time", self.data.first_rows_of_groups()
        self.model.begin(rows, labels, self._config.seed, in_order=in_order, first_rows=first_rows)

    def num_parameters(self) -> tuple[int, int]:
        return 0, self.model.num_parameters

    def weights(self) -> list[Array]:
        return []

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Do nothing: only the model of the last epoch exists."""

    def export(self, path: Path) -> None:
        path.write_bytes(self.model.to_onnx().SerializeToString(deterministic=True))

    def findings(self) -> Mapping[str, Any]:
        choice, objective = self.model.choice, objective_of(self._spec.heads)
        if choice is None or len(choice.candidates) == 1:
            return {}
        candidates = [
            {
                "name": one.name,
                "score": None if one.problem else 1 - one.error if objective.higher_is_better else one.error,
                "spread": None if one.problem else one.spread,
                "weight": one.weight,
                "problem": one.problem,
            }
            for one in choice.candidates
        ]
        return {"metric": objective.name, "reason": choice.reason, "candidates": candidates}
