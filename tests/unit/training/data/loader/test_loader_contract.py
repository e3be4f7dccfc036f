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

from rankline.training.data.loader import tensorflow
from rankline.training.data.loader import torch as torch_module
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
    return TorchAsyncItr(paths, list(cats), list(conts), list(labels), batch_size, **{"shuffle": True, **options})


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


def test_files_without_rows_yield_no_batch(make: Any, tmp_path: Path) -> None:
    empty = pa.table({"item": pa.array([], pa.int64()), "price": pa.array([], pa.float64())})
    pq.write_table(empty, tmp_path / "a.parquet")
    loader = make(tmp_path, ["item"], [], ["price"], 3)
    assert (len(loader), list(loader)) == (0, [])


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
    with pytest.raises(ConfigError, match="not fitted"):
        make(tmp_path, ["user"], [], ["label"]).map(nvt.Workflow(["user"] >> ops.Categorify()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cats": [], "conts": []}, "there are no input columns: none are named, and the schema of the data has no"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"global_rank": 3}, "global_rank is 3"),
        ({"conts": ["age", "movieId"]}, r"\['movieId'\] are listed both as ids \(int64\) and as numbers"),
        (
            {"labels": ["rating", "userId"], "stack_labels": True},
            r"labels \['userId'\] are int64 ids, which cannot be stacked",
        ),
        ({"shuffled": True}, "has no option 'shuffled'. Available: seed, .*, shuffle, parts_per_chunk, "),
        ({"seed_fn": 3}, "seed_fn is 3, expected a function"),
        ({"batch_size": 2.5}, "batch_size is 2.5, expected an integer"),
        ({"shuffle": "no"}, "shuffle is 'no', expected True or False"),
        ({"sparse_names": "genres"}, "sparse_names is 'genres' and sparse_max None, expected a list of columns"),
        ({"sparse_names": ["tags"]}, r"sparse_names has \['tags'\], expected input columns: \['age', 'genres', "),
        ({"fill_nulls": {"tags": -1}}, r"fill_nulls has \['tags'\], expected some of the loaded columns: \['"),
        ({"cardinalities": {"tags": 5}}, r"cardinalities has \['tags'\]"),
        ({"finite": ["tags"]}, r"finite has \['tags'\]"),
        ({"sparse_max": {"genres": 3}}, r"sparse_max has \['genres'\], which sparse_names lacks"),
        ({"sparse_names": ["genres"], "sparse_max": {"genres": 0}}, "sparse_max of 'genres' is 0, expected a positive"),
        ({"batch_size": 5000, "drop_last": True}, "drop_last drops all rows because the data has 4,000 rows"),
        ({"global_size": 8, "drop_last": True}, "because the data has 4,000 rows for 8 workers and batch_size is"),
    ],
)
def test_contradictory_options_are_refused(make: Any, prepared: Path, changes: dict[str, Any], message: str) -> None:
    options = {"cats": CATS, "conts": ["age"], "labels": ["rating"], **changes}
    with pytest.raises(ConfigError, match=message):
        make(prepared / "train", **options)


def test_label_of_lists_is_refused(make: Any, prepared: Path) -> None:
    with pytest.raises(DataError, match="label column 'genres' contains lists"):
        next(iter(make(prepared / "train", ["userId"], [], ["genres"])))


def test_next_and_peek_go_through_a_pass_until_it_is_stopped(make: Any, prepared: Path) -> None:
    with make(prepared / "train", CATS, ["age"], ["rating"], 1500, shuffle=False) as loader:
        expected = ages(loader)
        first = ages([loader.peek()])
        batches = [next(loader) for _ in range(len(loader))]
        np.testing.assert_array_equal(ages(batches), expected)
        np.testing.assert_array_equal(ages(batches[:1]), first)
        with pytest.raises(StopIteration):
            next(loader)
        next(loader), next(loader)
        loader.stop()
        np.testing.assert_array_equal(ages([next(loader)]), first)
    np.testing.assert_array_equal(ages([next(loader)]), first)


def test_peek_does_not_change_the_position(make: Any, prepared: Path) -> None:
    loader, restarted = (make(prepared / "train", CATS, ["age"], ["rating"], 600) for _ in range(2))
    next(loader)
    peeked = [ages([loader.peek()]) for _ in range(2)]
    np.testing.assert_array_equal(*peeked)
    restarted.load_state_dict(loader.state_dict())
    np.testing.assert_array_equal(ages([next(iter(restarted))]), peeked[0])
    np.testing.assert_array_equal(ages([next(loader)]), peeked[0])
    assert loader.state_dict()["batch"] == 2


def test_pass_may_have_several_epochs(make: Any, prepared: Path) -> None:
    one, same = (make(prepared / "train", CATS, ["age"], ["rating"], 1500) for _ in range(2))
    several = same.epochs(2)
    assert len(several) == 2 * len(one)
    np.testing.assert_array_equal(ages(several), np.concatenate([ages(one), ages(one)]))
    np.testing.assert_array_equal(ages([several.peek()]), ages(one)[:1500])
    for number in (0, "2"):
        with pytest.raises(ConfigError, match=f"epochs is {number!r}, expected a positive integer"):
            one.epochs(number)
    several.stop()
    several.map(lambda inputs, label: (label,))
    assert (len(several.peek()), len(one.peek())) == (1, 2)
    one.stop()
    next(one)
    same.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(ages(same.epochs(1)), ages([next(one), next(one)]))


def test_functions_are_applied_to_batches(make: Any, prepared: Path) -> None:
    def weighted(inputs: dict[str, Any], label: Any) -> Any:
        return {"userId": inputs["userId"]}, label, inputs["age"] * 2

    loader = make(prepared / "train", ["userId"], ["age"], ["rating"], 600, shuffle=False)
    expected = ages(loader)
    rows = list(loader.map(weighted))
    assert {tuple(inputs) for inputs, *_ in rows} == {("userId",)}
    np.testing.assert_allclose(np.concatenate([weight.numpy()[:, 0] for *_, weight in rows]), 2 * expected)
    assert len(loader.peek()) == 3
    with pytest.raises(TypeError, match=r"map\(\) got a int, expected a function of a batch or a fitted"):
        loader.map(3)


def test_attributes_take_effect_at_the_next_epoch(make: Any, prepared: Path) -> None:
    loader = make(prepared / "train", CATS, ["age"], ["rating"], 1500)
    batches = iter(loader)
    next(batches)
    loader.batch_size, loader.shuffle, loader.cat_names = 2000, False, ["userId"]
    assert (loader.batch_size, loader.shuffle, loader.cat_names) == (2000, False, ["userId"])
    assert [len(label) for _, label in batches] == [1500, 1000]
    (inputs, label), _ = loader
    assert (sorted(inputs), len(label)) == (["age", "userId"], 2000)
    np.testing.assert_array_equal(ages(loader), pq.read_table(prepared / "train")["age"].to_numpy())
    loader.data = prepared / "valid"
    assert loader.num_rows == pq.read_table(prepared / "valid").num_rows
    with pytest.raises(ValueError, match="batch_size is 0"):
        loader.batch_size = 0
    assert loader.batch_size == 2000
    with pytest.raises(ConfigError, match="are listed both as ids"):
        loader.cont_names = ["userId"]
    assert (loader.cat_names, loader.cont_names) == (["userId"], ["age"])
    loader.label_names = ["liked"]
    with pytest.raises(DataError, match=r"lacks the columns \['liked'\]"):
        next(iter(loader))
    loader.label_names = ["rating"]
    batches = iter(loader)
    next(batches)
    loader.cat_names, loader.label_names = ["movieId"], None
    assert [(sorted(inputs), label is None) for inputs, label in batches] == [(["age", "userId"], False)] * (
        len(loader) - 1
    )
    assert [(sorted(inputs), label) for inputs, label in loader][:1] == [(["age", "movieId"], None)]


def test_seed_function_gives_the_order_of_every_epoch(make: Any, prepared: Path) -> None:
    def epoch(seed: int) -> Any:
        return ages(make(prepared / "train", CATS, ["age"], ["rating"], seed=seed))

    seeds = iter((4, 9, 4))
    loader = make(prepared / "train", CATS, ["age"], ["rating"], seed_fn=lambda: next(seeds))
    np.testing.assert_array_equal(ages(loader), epoch(4))
    assert not np.array_equal(ages(loader), epoch(9))  # the number of the epoch counts, too
    with pytest.raises(ConfigError, match="the order of a loader with seed_fn cannot be saved"):
        loader.state_dict()
    with pytest.raises(ConfigError, match="seed_fn returned None, expected an integer"):
        make(prepared / "train", CATS, ["age"], ["rating"], seed_fn=lambda: None).peek()


def test_loader_without_labels_yields_none(make: Any, prepared: Path) -> None:
    loader = make(prepared / "train", CATS, ["age"], [], 600)
    assert [labels for _, labels in loader] == [None] * len(loader)


LISTS = pa.table({"tags": [[5, 6], [], [7]], "item": [1, 2, 3]})


def test_lists_may_be_padded_or_sparse(make: Any) -> None:
    padded = [[5, 6, 0], [0, 0, 0], [7, 0, 0]]
    options = {"shuffle": False, "sparse_names": ["tags"], "sparse_max": {"tags": 3}}
    dense, _ = make(LISTS, ["tags", "item"], [], [], 3, sparse_as_dense=True, **options).peek()
    np.testing.assert_array_equal(dense["tags"], padded)
    sparse, _ = make(LISTS, ["tags", "item"], [], [], 3, **options).peek()
    tags = sparse["tags"]
    got = tf.sparse.to_dense(tags).numpy() if isinstance(tags, tf.SparseTensor) else tags.to_dense().numpy()
    np.testing.assert_array_equal(got, padded)
    longest, _ = make(LISTS, ["tags"], [], [], 3, shuffle=False, sparse_names=["tags"], sparse_as_dense=True).peek()
    assert tuple(longest["tags"].shape) == (3, 2)
    with pytest.raises(DataError, match="column 'tags' has a list of 2 values, more than its width, 1"):
        make(LISTS, ["tags"], [], [], 3, **(options | {"sparse_max": {"tags": 1}})).peek()
    with pytest.raises(DataError, match="column 'item' has single values, but is one of sparse_names"):
        make(LISTS, ["item"], [], [], 3, sparse_names=["item"]).peek()


def test_names_that_are_omitted_come_from_the_schema(prepared: Path) -> None:
    dataset = tagged(pd.DataFrame({"user": [1, 2], "price": [0.5, 1.5], "bought": [0, 1], "other": [3, 4]}))
    for loader in (KerasSequenceLoader(dataset, 2, shuffle=False), TorchAsyncItr(dataset, batch_size=2)):
        inputs, label = loader.peek()
        assert (list(inputs), label.numpy().ravel().tolist()) == (["user", "price"], [0, 1])
    for loader in (KerasSequenceLoader(dataset, 2, None, cont_names=None), TorchAsyncItr(dataset, conts=[], labels=[])):
        inputs, label = loader.peek()
        assert (list(inputs), label) == (["user"], None)
    for make in (KerasSequenceLoader, TorchAsyncItr):
        with pytest.raises(ValueError, match="the schema of the data has no columns tagged CATEGORICAL or CONTINUOUS"):
            make(prepared / "train", batch_size=2)
    with pytest.raises(ConfigError, match="the id columns are 'user', expected a list of column names"):
        TorchAsyncItr(dataset, "user")


def tagged(frame: pd.DataFrame) -> Any:
    with quiet_nvtabular():
        dataset = nvt.Dataset(frame)
    tags = {"user": "categorical", "price": "continuous", "bought": "target"}
    for name in set(tags) & set(frame.columns):
        dataset.schema[name] = dataset.schema[name].with_tags(tags[name])
    return dataset


@pytest.fixture(params=[tensorflow.Loader, torch_module.Loader], ids=["tensorflow", "torch"])
def schema_loader(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_loader_of_merlin_reads_all_columns_of_the_schema(schema_loader: Any) -> None:
    frame = pd.DataFrame(
        {
            "user": np.array([1, 2, 3], np.int32),
            "price": [0.5, 1.5, 2.5],
            "tags": [[5, 6], [], [7]],
            "pair": [[1, 2], [3, 4], [5, 6]],
            "grid": [[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]],
            "bought": [0, 1, 1],
        }
    )
    dataset = tagged(frame)
    with pytest.raises(ConfigError, match=r"'grid' has lists of lists, but the schema .*with_shape\(\(None, rows"):
        schema_loader(dataset, 2)
    for name, shape in (("pair", (None, 2)), ("grid", (None, 1, 2))):
        dataset.schema[name] = dataset.schema[name].with_shape(shape)
    loader = schema_loader(dataset, 2)
    (inputs, label), (rest, _) = loader
    assert {name: tensor.numpy().tolist() for name, tensor in inputs.items()} == {
        "user": [1, 2],
        "price": [0.5, 1.5],
        "tags__values": [5, 6],
        "tags__offsets": [0, 2, 2],
        "pair": [[1, 2], [3, 4]],
        "grid": [[[1.0, 2.0]], [[3.0, 4.0]]],
    }
    assert (label.numpy().tolist(), rest["tags__values"].numpy().tolist()) == ([0, 1], [7])
    assert {str(inputs[name].dtype).rpartition(".")[2].strip("<>' dtype:") for name in ("user", "price")} == {
        "int32",
        "float64",
    }
    assert loader.schema.column_names == loader.input_schema.column_names == list(frame.columns)
    with pytest.raises(ConfigError, match=r"columns of a Loader are those of its schema\. Set loader\.schema"):
        loader.label_names = ["user"]
    loader.input_schema = dataset.schema.excluding_by_name(["grid", "bought"])
    inputs, label = loader.peek()
    assert ("grid" in inputs, label) == (False, None)


def test_loader_of_merlin_returns_several_labels_by_name(schema_loader: Any) -> None:
    dataset = tagged(pd.DataFrame({"user": [1, 2], "bought": [0, 1], "liked": [1, 1]}))
    dataset.schema["liked"] = dataset.schema["liked"].with_tags("target")
    _, labels = schema_loader(dataset, 2).peek()
    assert {name: label.numpy().tolist() for name, label in labels.items()} == {"bought": [0, 1], "liked": [1, 1]}
    with pytest.raises(ConfigError, match=r"transforms is not supported\. Pass a fitted nvtabular\.Workflow"):
        schema_loader(dataset, 2, transforms=[])


def test_list_that_does_not_have_the_shape_of_the_schema_is_refused(schema_loader: Any) -> None:
    def loader_of(pair: list[list[int]]) -> Any:
        dataset = tagged(pd.DataFrame({"pair": pair}))
        dataset.schema["pair"] = dataset.schema["pair"].with_shape((None, 2))
        return schema_loader(dataset, 2)

    with pytest.raises(DataError, match=r"'pair' has a list of 3 values, but rows of shape \(2,\) in the schema"):
        loader_of([[1], [2, 3, 4]]).peek()
    np.testing.assert_array_equal(loader_of([[1], [2, 3]]).peek()[0]["pair"], [[1, 0], [2, 3]])
