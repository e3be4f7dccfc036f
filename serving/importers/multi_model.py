"""Several models behind one workflow, served as one model that takes the inputs and returns the outputs of all."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rankline.serving.importers import ForeignModel, saved_model
from rankline.serving.importers.input_binding import Feed, Input
from rankline.workflows.core.errors import ExportError
from rankline.workflows.schema.model_artifact import SAVED_MODEL
from rankline.workflows.schema.targets import Head


class Several(ForeignModel):
    """A `ForeignModel` that combines TensorFlow models."""

    format = SAVED_MODEL

    def __init__(self, models: Sequence[ForeignModel]) -> None:
        if foreign := sorted({model.format for model in models} - {SAVED_MODEL}):
            raise ExportError(f"several models are served as one where all are TensorFlow's, got {foreign} too.")
        by_name: dict[str, Input] = {}
        for entry in (entry for model in models for entry in model.inputs):
            if by_name.setdefault(entry.name, entry) != entry:
                raise ExportError(f"two models take {by_name[entry.name]} and {entry}. Save them with the same inputs.")
        self._models: tuple[Any, ...] = tuple(models)
        self.inputs = tuple(by_name.values())

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        return self._named([model.run(self._own(model, arrays)) for model in self._models])

    def function(self, **tensors: Any) -> dict[str, Any]:
        return self._named([model.function(**self._own(model, tensors)) for model in self._models])

    def write(self, feeds: Sequence[Feed], heads: Sequence[Head], target: Path) -> None:
        saved_model.save([model.kept for model in self._models], self.function, feeds, heads, target)

    def _own(self, model: ForeignModel, tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {entry.name: tensors[entry.name] for entry in model.inputs}

    def _named(self, made: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the outputs by name, with the position of the model as suffix if two models have the same name."""
        names = [name for outputs in made for name in outputs]
        return {
            name if names.count(name) == 1 else f"{name}_{place}": output
            for place, outputs in enumerate(made)
            for name, output in outputs.items()
        }
