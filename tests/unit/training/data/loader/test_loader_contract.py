"""What the loaders of both frameworks do: `KerasSequenceLoader` and `TorchAsyncItr`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import torch

from rankline.training.data.loader.tensorflow import KerasSequenceLoader
from rankline.training.data.loader.torch import TorchAsyncItr
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular

CATS = ("userId", "movieId", "genres")


def keras_loader(
    paths: Any, cats: Sequence[str], conts: Sequence[str], labels: Sequence[str], batch_size: int = 600, **options: Any
) -> Any:
    return KerasSequenceLoader(paths, batch_size, labels, cat_names=cats, cont_names=conts, **options)


def torch_loader(
    paths: Any, cats: Sequence[str], conts: Sequence[str], labels: Sequence[str], batch_size: int = 600, **options: Any
) -> Any:
    return TorchAsyncItr(paths, list(cats), list(conts), list(labels), batch_size, **options)


@pytest.fixture(params=[keras_loader, torch_loader], ids=["tensorflow", "torch"])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


def ages(batches: Any) -> Any:
    return np.concatenate([inputs["age"].numpy()[:, 0] for inputs, _ in batches])


def test_shuffle_reorders_the_same_rows_each_epoch(make: Any, prepared: Path) -> None:
    loader, same = (make(prepared / "train", CATS, ["age"], ["rating"], parts_per_chunk=4) for _ in range(2))
    first, second = ages(loader), ages(loader)
    assert len(first) == loader.num_rows == 4000
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(np.sort(first), np.sort(second))
    np.testing.assert_array_equal(ages(same), first)


@pytest.mark.parametrize("shuffle", [True, False])
def test_column_may_be_an_input_and_a_label(make: Any, tmp_path: Path, shuffle: bool) -> None:
    items = [2**24, 2**24 + 1, 2**24 + 2]  # float32 does not tell the first two apart
    pq.write_table(pa.table({"item": items, "price": [0.5, 1.5, 2.5]}), tmp_path / "a.parquet")
    inputs, (item, price) = next(iter(make(tmp_path, ["item"], ["price"], ["item", "price"], 3, shuffle=shuffle)))
    assert sorted(inputs["item"].numpy()[:, 0].tolist()) == items
    assert (inputs["item"].dtype, item.dtype) in ((tf.int64, tf.int64), (torch.int64, torch.int64))
    np.testing.assert_array_equal(item.numpy().ravel(), inputs["item"].numpy()[:, 0])
    np.testing.assert_array_equal(price.numpy().ravel(), inputs["price"].numpy()[:, 0])


def test_lists_of_one_length_are_matrices(make: Any, tmp_path: Path) -> None:
    matrix = np.arange(30).reshape(10, 3)
    lists = pa.FixedSizeListArray.from_arrays(matrix.reshape(-1), 3)
    pq.write_table(pa.table({"history": lists, "label": np.ones(10)}), tmp_path / "a.parquet")
    inputs, _ = next(iter(make(tmp_path, ["history"], [], ["label"], 10, shuffle=False)))
    np.testing.assert_array_equal(inputs["history"], matrix)


def test_several_labels_come_as_a_tuple(make: Any, prepared: Path) -> None:
    _, labels = next(iter(make(prepared / "train", ["userId"], [], ["rating", "age"], 10)))
    assert [label.shape[0] for label in labels] == [10, 10]


def test_restarted_loader_resumes_with_the_remaining_batches(make: Any, prepared: Path) -> None:
    loader, restarted = (make(prepared / "train", CATS, ["age"], ["rating"]) for _ in range(2))
    list(loader)  # epoch 0
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = ages(batches)
    restarted.load_state_dict(state)
    np.testing.assert_array_equal(ages(restarted), rest)
    np.testing.assert_array_equal(ages(restarted), ages(loader))
    with pytest.raises(ConfigError, match="batch_size 600, but this loader has 601"):
        make(prepared / "train", CATS, ["age"], ["rating"], 601).load_state_dict(state)


def test_workflow_is_applied_online(make: Any, tmp_path: Path) -> None:
    raw = pd.DataFrame({"user": np.arange(100), "price": np.arange(100.0), "label": np.arange(100) % 2})
    raw.to_parquet(tmp_path / "raw.parquet", row_group_size=30)
    with quiet_nvtabular():
        workflow = nvt.Workflow(["price"] >> ops.Normalize()).fit(nvt.Dataset(raw))
        expected = workflow.transform(raw)["price"].to_numpy()
    loader = make(tmp_path, ["user"], ["price"], ["label"], 32, shuffle=False).map(workflow)
    got = np.concatenate([inputs["price"].numpy()[:, 0] for inputs, _ in loader])
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    with pytest.raises(ConfigError, match="before the first batch"):
        loader.map(workflow)
    with pytest.raises(ConfigError, match="not fitted"):
        make(tmp_path, ["user"], [], ["label"]).map(nvt.Workflow(["user"] >> ops.Categorify()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": []}, "label_names and at least one of|the loader requires labels"),
        ({"cats": [], "conts": []}, "label_names and at least one of|the loader requires labels"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"global_rank": 3}, "global_rank is 3"),
        ({"conts": ["age", "movieId"]}, r"\['movieId'\] are listed both as ids \(int64\) and as numbers"),
        (
            {"labels": ["rating", "userId"], "stack_labels": True},
            r"labels \['userId'\] are int64 ids, which cannot be stacked",
        ),
        ({"seed_fn": None}, "has no option 'seed_fn'. Available: shuffle, seed"),
        ({"batch_size": 5000, "drop_last": True}, "drop_last drops all rows because the data has 4,000 rows"),
        ({"global_size": 8, "drop_last": True}, "drop_last drops all rows because the data has 4,000 rows"),
    ],
)
def test_contradictory_options_are_refused(make: Any, prepared: Path, changes: dict[str, Any], message: str) -> None:
    options = {"cats": CATS, "conts": ["age"], "labels": ["rating"], **changes}
    with pytest.raises(ConfigError, match=message):
        len(make(prepared / "train", **options))


def test_label_of_lists_is_refused(make: Any, prepared: Path) -> None:
    with pytest.raises(DataError, match="label column 'genres' contains lists"):
        next(iter(make(prepared / "train", ["userId"], [], ["genres"])))
