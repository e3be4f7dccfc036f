"""One function of a number, an id and a list, as models of each framework and in each layout that people use."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rankline.serving.engines import engine_for
from rankline.serving.importers import ForeignModel
from rankline.serving.importers.input_binding import Encoded, Input, InputBinding, arrays_of, dtypes_of, match
from rankline.workflows.schema.ragged import padded_rows
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head
from rankline.workflows.schema.tensor_names import NNZS, OFFSETS, VALUES

WIDTH = 4
"""Of lists, in layouts of one width."""

COLUMNS = (
    Encoded(name="user", dtype="int64"),
    Encoded(name="price", dtype="float64"),
    Encoded(name="tags", dtype="int64", is_list=True),
)
ROWS = pd.DataFrame(
    {
        "user": np.array([0, 3, 7, 1, 9]),
        "price": [0.5, -1.25, 3.0, 0.0, 2.5],
        "tags": pd.Series([[1, 2], [], [5, 6, 7, 8], [3], [2, 2, 4]], dtype=object),
    }
)

SINGLES: Mapping[str, tuple[Input, ...]] = {
    "[rows, 1]": (
        Input(name="user", dtype="int64", shape=(None, 1)),
        Input(name="price", dtype="float32", shape=(None, 1)),
    ),
    "[rows]": (Input(name="user", dtype="int32", shape=(None,)), Input(name="price", dtype="float32", shape=(None,))),
}
LISTS: Mapping[str, tuple[Input, ...]] = {
    "values and offsets": (
        Input(name="tags" + VALUES, dtype="int64", shape=(None,)),
        Input(name="tags" + OFFSETS, dtype="int32", shape=(None,)),
    ),
    "values and lengths of merlin's first loaders": (
        Input(name="tags" + VALUES, dtype="int64", shape=(None, 1)),
        Input(name="tags" + NNZS, dtype="int64", shape=(None, 1)),
    ),
    "padded, with lengths": (
        Input(name="tags" + VALUES, dtype="int64", shape=(None, None)),
        Input(name="tags" + NNZS, dtype="int32", shape=(None, 1)),
    ),
    "padded": (Input(name="tags", dtype="int32", shape=(None, None)),),
    "padded to a width": (Input(name="tags", dtype="int64", shape=(None, WIDTH)),),
}
LAYOUTS = {
    **{f"singles {name}": inputs for name, inputs in SINGLES.items()},
    **{f"[rows, 1], lists {kind}": (*inputs, *SINGLES["[rows, 1]"]) for kind, inputs in LISTS.items()},
}


def expected(inputs: tuple[Input, ...], rows: pd.DataFrame = ROWS) -> np.ndarray:
    """What the model of a layout says of rows."""
    total = 0.1 * rows["user"].to_numpy() + 0.25 * rows["price"].to_numpy()
    if any(entry.name.startswith("tags") for entry in inputs):
        total = total + 0.05 * np.array([sum(tags) for tags in rows["tags"]])
    return (1 / (1 + np.exp(-total))).astype(np.float32)


def served_arrays(feeds: tuple[InputBinding, ...], dtypes: Mapping[str, str]) -> dict[str, np.ndarray]:
    """`ROWS` in the layout of served models, in the dtypes in which a plan makes them."""
    arrays = padded_rows(ROWS[list(dict.fromkeys(name for feed in feeds for name in feed.columns))])
    return {
        name: array if name.endswith(NNZS) else array.astype(dtypes[name.removesuffix(VALUES)])
        for name, array in arrays.items()
    }


def lists_sum(inputs: tuple[Input, ...], arrays: Mapping[str, Any], framework: Any) -> Any:
    """Sum of the tags of each row [rows], from the arrays of a layout; `framework` brings the operations."""
    by_name = {entry.name: entry for entry in inputs}
    if "tags" in by_name:
        return framework.sum_rows(arrays["tags"])
    values = arrays["tags" + VALUES]
    if by_name["tags" + VALUES].shape == (None, None):
        return framework.sum_rows(framework.masked(values, arrays["tags" + NNZS]))
    if "tags" + NNZS in by_name:
        return framework.sum_segments(framework.flat(values), framework.flat(arrays["tags" + NNZS]))
    offsets = arrays["tags" + OFFSETS]
    return framework.sum_segments(values, offsets[1:] - offsets[:-1])


def total_of(inputs: tuple[Input, ...], arrays: Mapping[str, Any], framework: Any) -> Any:
    """The logit of each row [rows]."""
    flat = {name: framework.numbers(framework.flat(arrays[name])) for name in ("user", "price")}
    total = 0.1 * flat["user"] + 0.25 * flat["price"]
    if any(entry.name.startswith("tags") for entry in inputs):
        total = total + 0.05 * framework.numbers(lists_sum(inputs, arrays, framework))
    return total


class TensorFlow:
    """The operations in TensorFlow."""

    @staticmethod
    def flat(tensor: Any) -> Any:
        import tensorflow as tf

        return tf.reshape(tensor, [-1])

    @staticmethod
    def numbers(tensor: Any) -> Any:
        import tensorflow as tf

        return tf.cast(tensor, tf.float32)

    @staticmethod
    def sum_rows(tensor: Any) -> Any:
        import tensorflow as tf

        return tf.reduce_sum(tensor, axis=1)

    @staticmethod
    def masked(values: Any, lengths: Any) -> Any:
        import tensorflow as tf

        return tf.where(tf.range(tf.shape(values)[1]) < lengths, values, 0)

    @staticmethod
    def sum_segments(values: Any, lengths: Any) -> Any:
        import tensorflow as tf

        return tf.reduce_sum(tf.RaggedTensor.from_row_lengths(values, tf.cast(lengths, tf.int64)), axis=1)


class Torch:
    """The operations in PyTorch."""

    @staticmethod
    def flat(tensor: Any) -> Any:
        return tensor.reshape(-1)

    @staticmethod
    def numbers(tensor: Any) -> Any:
        return tensor.float()

    @staticmethod
    def sum_rows(tensor: Any) -> Any:
        return tensor.sum(1)

    @staticmethod
    def masked(values: Any, lengths: Any) -> Any:
        import torch

        return values * (torch.ones_like(values).cumsum(1) <= lengths)

    @staticmethod
    def sum_segments(values: Any, lengths: Any) -> Any:
        import torch

        ends = torch.cat([values.new_zeros(1), values.cumsum(0)])
        stops = lengths.long().cumsum(0)
        return ends[stops] - ends[stops - lengths.long()]


def save_saved_model(inputs: tuple[Input, ...], path: Path) -> Path:
    """A plain module."""
    import tensorflow as tf

    specs = [tf.TensorSpec(entry.shape, entry.dtype, entry.name) for entry in inputs]

    def score(*tensors: Any) -> dict[str, Any]:
        named = dict(zip((entry.name for entry in inputs), tensors, strict=True))
        return {"click": tf.sigmoid(total_of(inputs, named, TensorFlow))[:, None]}

    function = tf.function(score, input_signature=specs)
    tf.saved_model.save(tf.Module(), str(path), signatures={"serving_default": function})
    return path


def torch_module(inputs: tuple[Input, ...]) -> tuple[Any, tuple[Any, ...]]:
    """A module whose `forward` has arguments of those names, and example arguments."""
    import inspect

    import torch

    names = [entry.name for entry in inputs]

    def forward(self: Any, *tensors: Any) -> Any:
        return torch.sigmoid(total_of(inputs, dict(zip(names, tensors, strict=True)), Torch))[:, None]

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    module = type("Made", (torch.nn.Module,), {"forward": forward})().eval()
    arrays = arrays_of(match(inputs, COLUMNS, {}), ROWS)
    return module, tuple(torch.from_numpy(arrays[name]) for name in names)


def both_scores(
    model: ForeignModel, columns: Mapping[str, Any], directory: Path
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What a model's framework gives for columns, and what the served model does, by output, [rows, width] float32."""
    frame = pd.DataFrame({name: pd.Series(list(column)) for name, column in columns.items()})
    lists = {name for name, column in columns.items() if isinstance(column, list)}
    encoded = [
        Encoded(name=name, dtype="int64" if name in lists else str(frame[name].dtype), is_list=name in lists)
        for name in columns
    ]
    feeds = model.resolve_bindings(
        match(model.inputs or tuple(Input(name=name) for name in columns), encoded, {}), frame
    )
    made = {
        name: np.asarray(output).reshape(len(frame), -1).astype(np.float32)
        for name, output in model.run(arrays_of(feeds, frame)).items()
    }
    heads = tuple(
        Head(name, task=MULTICLASS, classes=tuple(map(str, range(output.shape[1]))))
        if output.shape[1] > 1
        else Head(name, task=REGRESSION)
        for name, output in made.items()
    )
    target = directory / "served" / model.format
    target.parent.mkdir(exist_ok=True)
    model.write(feeds, heads, target)
    dtypes = dtypes_of(feeds)
    arrays = padded_rows(frame[list(dtypes)])
    arrays = {n: a if n.endswith(NNZS) else a.astype(dtypes[n.removesuffix(VALUES)]) for n, a in arrays.items()}
    served = engine_for(model.format).load_trained(target).served_call(list(arrays))(*arrays.values())
    return made, dict(zip(sorted(made), served, strict=True))


def check_scores(model: ForeignModel, columns: Mapping[str, Any], directory: Path) -> dict[str, np.ndarray]:
    """Compare both; returns them."""
    made, served = both_scores(model, columns, directory)
    assert sorted(made) == sorted(served)
    for name, output in made.items():
        assert served[name].dtype == np.float32
        np.testing.assert_allclose(served[name], output, rtol=1e-5, atol=1e-6)
    return made


Saver = Callable[[tuple[Input, ...], Path], Path]
