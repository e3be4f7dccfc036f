"""Models of each framework and layout score the same in the layout of served ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankline.serving.engines import engine_for
from rankline.serving.importers import open_model
from rankline.serving.importers.input_binding import Input, arrays_of, dtypes_of, match
from rankline.workflows.schema.ragged import padded_rows
from rankline.workflows.schema.targets import REGRESSION, Head
from rankline.workflows.schema.tensor_names import NNZS, VALUES
from tests.factories.importable_models import (
    COLUMNS,
    LAYOUTS,
    ROWS,
    Saver,
    expected,
    save_saved_model,
    served_arrays,
    torch_module,
)

FORMATS: dict[str, Saver] = {"SavedModel": save_saved_model}


def _saver(function: Saver) -> Saver:
    FORMATS[function.__name__] = function
    return function


@_saver
def torch_script(inputs: tuple[Input, ...], path: Path) -> Path:
    import torch

    module, example = torch_module(inputs)
    torch.jit.trace(module, example, check_trace=False).save(str(path))
    return path


@_saver
def onnx_of_pytorch(inputs: tuple[Input, ...], path: Path) -> Path:
    import torch

    module, example = torch_module(inputs)
    names = [entry.name for entry in inputs]
    axes = {e.name: {i: f"{e.name}_{i}" for i, n in enumerate(e.shape or ()) if n is None} for e in inputs}
    path = path.with_suffix(".onnx")
    torch.onnx.export(
        module,
        example,
        path,
        input_names=names,
        output_names=["click"],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )
    return path


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("format_name", FORMATS)
def test_imported_model_scores_the_same_when_served(format_name: str, layout: str, tmp_path: Path) -> None:
    inputs = LAYOUTS[layout]
    model = open_model(FORMATS[format_name](inputs, tmp_path / "model"))
    feeds = match(model.inputs, COLUMNS, {})
    feeds = model.resolve_bindings(feeds, ROWS)
    made = model.run(arrays_of(feeds, ROWS))
    ((name, scores),) = made.items()
    np.testing.assert_allclose(scores.reshape(-1), expected(inputs), rtol=1e-6)
    heads = (Head(name, task=REGRESSION),)
    target = tmp_path / "served" / model.format
    target.parent.mkdir()
    model.write(feeds, heads, target)
    arrays: dict[str, Any] = served_arrays(feeds, dtypes_of(feeds))
    served = engine_for(model.format).load_trained(target).served_call(list(arrays))
    (result,) = served(*arrays.values())
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected(inputs)[:, None], rtol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("names", [("self", "monthly fee", "class"), ("Fee", "fee", "ts/age_days")])
@pytest.mark.parametrize("format_name", ["SavedModel", "torch_script"])
def test_imported_model_takes_columns_of_any_name(format_name: str, names: tuple[str, ...], tmp_path: Path) -> None:
    inputs = LAYOUTS["[rows, 1], lists padded"]
    renames = dict(zip(names, (column.name for column in COLUMNS), strict=True))
    model = open_model(FORMATS[format_name](inputs, tmp_path / "model"))
    columns = [replace(column, name=name) for name, column in zip(names, COLUMNS, strict=True)]
    rows = ROWS.set_axis(names, axis="columns")
    feeds = model.resolve_bindings(match(model.inputs, columns, renames), rows)
    ((name, _),) = model.run(arrays_of(feeds, rows)).items()
    target = tmp_path / "served" / model.format
    target.parent.mkdir()
    model.write(feeds, (Head(name, task=REGRESSION),), target)
    served, tensors = engine_for(model.format).load_trained(target), padded_rows(rows)
    arrays = {
        name: array if name.endswith(NNZS) else array.astype(dtypes_of(feeds)[name.removesuffix(VALUES)])
        for name, array in tensors.items()
    }
    (result,) = served.served_call(list(arrays))(*arrays.values())
    np.testing.assert_allclose(result, expected(inputs)[:, None], rtol=1e-6)
    np.testing.assert_allclose(served.score_offline(rows), expected(inputs), rtol=1e-6)
