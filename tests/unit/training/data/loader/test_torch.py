import gc
import pickle
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rankline.training.data.loader.torch import DLDataLoader, TorchAsyncItr, _tensor
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.nvt.compat import nvt

# PyTorch's advice where there are fewer processors than worker processes.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

CATEGORICAL = ["userId", "movieId", "genres"]


def dataset_of(prepared: Path, split: str = "train", **options: Any) -> TorchAsyncItr:
    names = {"cats": CATEGORICAL, "conts": ["age"], "labels": ["rating"]}
    options = {**names, "batch_size": 600, "shuffle": True, **options}
    return TorchAsyncItr(prepared / split, **options)


def loader_of(prepared: Path, num_workers: int = 0, **options: Any) -> DLDataLoader:
    return DLDataLoader(dataset_of(prepared, **options), num_workers=num_workers)


def ages(batches: Any) -> Any:
    return np.concatenate([inputs["age"].numpy()[:, 0] for inputs, _ in batches])


def test_batches_have_the_documented_names_shapes_and_types(prepared: Path) -> None:
    inputs, label = next(iter(loader_of(prepared)))
    values, offsets = inputs.pop("genres")
    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in inputs.items()} == {
        "userId": ((600, 1), torch.int64),
        "movieId": ((600, 1), torch.int64),
        "age": ((600, 1), torch.float32),
    }
    assert (values.dtype, tuple(offsets.shape), offsets.dtype) == (torch.int64, (600, 1), torch.int64)
    assert offsets[0] == 0
    assert (offsets.diff(dim=0) >= 0).all()
    assert (tuple(label.shape), label.dtype) == ((600,), torch.float32)


def test_values_arrive_in_their_rows(prepared: Path) -> None:
    table = pa.concat_tables([pq.read_table(path) for path in sorted((prepared / "train").iterdir())])
    rows = list(loader_of(prepared, shuffle=False, batch_size=1500))
    for name in ("userId", "movieId", "age"):
        got = np.concatenate([inputs[name].numpy()[:, 0] for inputs, _ in rows])
        np.testing.assert_array_equal(got, table[name].to_numpy())
    np.testing.assert_array_equal(np.concatenate([label for _, label in rows]), table["rating"].to_numpy())
    lists = []
    for inputs, _ in rows:
        values, offsets = inputs["genres"]
        lists += np.split(values.numpy(), offsets.numpy()[1:, 0])
    assert [part.tolist() for part in lists] == table["genres"].to_pylist()


@pytest.mark.parametrize(("num_workers", "drop_last"), [(0, True), (2, False), (2, True)])
def test_workers_share_the_rows_and_the_length_is_right(prepared: Path, num_workers: int, drop_last: bool) -> None:
    loader = loader_of(prepared, num_workers, drop_last=drop_last)
    expected = np.sort(ages(dataset_of(prepared)))
    epochs = [list(loader) for _ in range(2)]
    for batches in epochs:
        assert len(batches) == len(loader)
        got = np.sort(ages(batches))
        if drop_last:
            assert all(len(label) == 600 for _, label in batches)
            assert np.isin(got, expected).all()
        else:
            np.testing.assert_array_equal(got, expected)
    assert not np.array_equal(ages(epochs[0]), ages(epochs[1]))
    assert loader.dataset.num_rows_processed == sum(len(label) for batches in epochs for _, label in batches)


@pytest.mark.parametrize("persistent", [True, False])
def test_epochs_of_pytorchs_own_loader_differ_and_follow_from_its_seed(prepared: Path, persistent: bool) -> None:
    def epochs() -> list[Any]:
        torch.manual_seed(3)
        options = {"num_workers": 2, "persistent_workers": persistent}
        loader = torch.utils.data.DataLoader(dataset_of(prepared, cats=[]), batch_size=None, **options)
        return [ages(loader) for _ in range(3)]

    first, second, third = epochs()
    for one, other in ((first, second), (first, third), (second, third)):
        assert not np.array_equal(one, other)
        np.testing.assert_array_equal(np.sort(one), np.sort(other))
    np.testing.assert_array_equal(epochs(), [first, second, third])


def test_ranks_and_their_workers_get_every_row_once(prepared: Path) -> None:
    parts = [ages(loader_of(prepared, 2, global_rank=rank, global_size=2)) for rank in range(2)]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.sort(ages(dataset_of(prepared))))


def test_read_only_memory_is_shared_without_a_warning_and_kept_alive() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array = pa.array(np.arange(1000)).to_numpy()
        assert not array.flags.writeable
        tensor = _tensor(array)
        assert tensor.data_ptr() == array.ctypes.data
        assert _tensor(array[10:10]).shape == (0,)
        owner = weakref.ref(array)
        del array
        gc.collect()
        assert owner() is not None
        assert tensor.sum() == 499_500
        del tensor
        gc.collect()
    assert owner() is None


def test_pinning_without_a_gpu_is_harmless_and_devices_are_honoured(prepared: Path) -> None:
    loader = DLDataLoader(dataset_of(prepared), pin_memory=True, device="meta")
    inputs, label = next(iter(loader))
    assert {tensor.device.type for tensor in (inputs["age"], *inputs["genres"], label)} == {"meta"}
    inputs, _ = next(iter(dataset_of(prepared, device="meta")))
    assert inputs["userId"].device.type == "meta"


# NVTabular 23.8 and merlin-core use interfaces that their own dependencies have deprecated by now.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_torch_loader_feeds_the_notebooks_model_and_epoch_function(prepared: Path) -> None:
    from nvtabular.framework_utils.torch.models import Model
    from nvtabular.framework_utils.torch.utils import process_epoch

    files = [str(path) for path in sorted((prepared / "train").iterdir())]
    dataset = TorchAsyncItr(
        nvt.Dataset(files, engine="parquet"), batch_size=500, cats=CATEGORICAL, conts=[], labels=["rating"]
    )
    loader = DLDataLoader(dataset, batch_size=None, collate_fn=lambda x: x, pin_memory=False, num_workers=0)
    torch.manual_seed(0)
    model = Model(
        embedding_table_shapes=({"userId": (60, 8), "movieId": (40, 8)}, {"genres": (8, 4)}),
        num_continuous=0,
        emb_dropout=0.0,
        layer_hidden_dims=[16],
        layer_dropout_rates=[0.0],
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = [process_epoch(loader, model, train=True, optimizer=optimizer, amp=False)[0] for _ in range(4)]
    assert losses[-1] < 0.8 * losses[0]
    assert dataset.num_rows_processed == 4 * 4000


def test_functions_of_map_may_return_anything(prepared: Path) -> None:
    for num_workers in (0, 1):
        loader = loader_of(prepared, num_workers)
        loader.dataset.map(lambda inputs, label: {"ages": inputs["age"]})
        assert sum(len(batch["ages"]) for batch in loader) == 4000


def test_loader_is_pickled_without_its_pass(prepared: Path) -> None:
    dataset = dataset_of(prepared)
    dataset.peek()
    copied = pickle.loads(pickle.dumps(dataset))
    assert len(ages(copied)) == 4000


def test_seed_function_is_not_called_in_workers(prepared: Path) -> None:
    with pytest.raises(ConfigError, match=r"each call seed_fn\. Pass a seed, or set num_workers=0"):
        list(loader_of(prepared, 1, seed_fn=lambda: 3))


def test_workers_do_not_take_up_a_position(prepared: Path) -> None:
    dataset = dataset_of(prepared)
    next(iter(dataset))
    restarted = dataset_of(prepared)
    restarted.load_state_dict(dataset.state_dict())
    with pytest.raises(ConfigError, match="Set num_workers=0"):
        list(DLDataLoader(restarted, num_workers=1))


@pytest.mark.slow
def test_workers_that_are_spawned_share_the_rows(prepared: Path) -> None:
    loader = DLDataLoader(dataset_of(prepared), num_workers=1, multiprocessing_context="spawn")  # it imports PyTorch
    assert sum(len(label) for _, label in loader) == loader.num_rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "device is 'gpu', expected"),
        pytest.param(
            {"device": "cuda"},
            "device is 'cuda', but PyTorch finds no GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_torch_loader_refuses_unusable_devices(prepared: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        len(dataset_of(prepared, **options))


def test_torch_loader_leaves_batching_to_its_dataset(prepared: Path) -> None:
    with pytest.raises(ConfigError, match="batch_size is 32, expected None or 1"):
        DLDataLoader(dataset_of(prepared), batch_size=32)


def test_rows_are_not_shuffled_unless_asked(prepared: Path) -> None:
    dataset = TorchAsyncItr(prepared / "train", [], ["age"], ["rating"], 600)
    np.testing.assert_array_equal(ages(dataset), pq.read_table(prepared / "train")["age"].to_numpy())


def test_collate_function_gets_a_list_of_one_batch_as_from_pytorch(prepared: Path) -> None:
    dataset = dataset_of(prepared, batch_size=4000)
    (whole,) = DLDataLoader(dataset, None, collate_fn=lambda batch: len(batch))
    (listed,) = DLDataLoader(dataset, collate_fn=lambda batches: [len(batch) for batch in batches])
    assert (whole, listed) == (2, [2])
