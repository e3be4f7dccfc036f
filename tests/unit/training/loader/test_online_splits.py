"""Splits of raw rows, which the loaders encode: the same batches as from encoded ones."""

from typing import Any

import numpy as np
import pytest

from training.loader.splits import first_rows, tensorflow_loader
from training.trainers.torch import TorchTrainer
from workflows.datasets.criteo import CRITEO
from workflows.datasets.movielens import MOVIELENS
from workflows.encodings import RowsConfig
from workflows.prepare import prepare
from workflows.prepared import PreparedData
from workflows.progress import SILENT


@pytest.fixture(scope="module", params=[CRITEO, MOVIELENS], ids=lambda dataset: dataset.name)
def both(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[PreparedData, PreparedData]:
    """The same rows prepared offline and online."""
    directory, dataset = tmp_path_factory.mktemp("both"), request.param
    scale = 0.0001 if dataset is CRITEO else 1.0
    dataset.generate(directory / "raw", num_rows=4_000, seed=3, cardinality_scale=scale, progress=SILENT)
    raw = dataset.read(directory / "raw")
    offline, online = (
        prepare(dataset, raw, directory / encode, encoding=RowsConfig(encode=encode), source="generated")
        for encode in ("offline", "online")
    )
    return offline, online


def test_a_tensorflow_loader_encodes_online_rows_as_offline_ones_are(both: tuple[PreparedData, PreparedData]) -> None:
    for name in ("train", "valid"):
        batches = [
            next(iter(tensorflow_loader(data.path, data.spec, name, 500, shuffle=False, seed=0))) for data in both
        ]
        (inputs, label), (online_inputs, online_label) = batches
        assert inputs.keys() == online_inputs.keys()
        for column, tensor in inputs.items():
            np.testing.assert_array_equal(online_inputs[column], tensor, err_msg=column)
        np.testing.assert_array_equal(online_label, label)


def test_shuffled_online_rows_are_all_there(both: tuple[PreparedData, PreparedData]) -> None:
    labels = [
        np.concatenate(
            [label for _, label in tensorflow_loader(data.path, data.spec, "train", 400, shuffle=True, seed=1)]
        )
        for data in both
    ]
    assert len(labels[0]) == len(labels[1])
    assert labels[0].sum() == labels[1].sum()


def test_a_torch_model_is_given_online_rows_encoded_as_offline_ones_are(
    both: tuple[PreparedData, PreparedData],
) -> None:
    def first(data: PreparedData) -> Any:
        return next(iter(TorchTrainer.batches(data.path, data.spec, "valid", 200, shuffle=False, seed=0)))

    (inputs, label), (online_inputs, online_label) = map(first, both)
    for column, tensor in inputs.items():
        pairs = (
            zip(tensor, online_inputs[column], strict=True)
            if isinstance(tensor, tuple)
            else [(tensor, online_inputs[column])]
        )
        assert all((one == other).all() for one, other in pairs)
    assert (label == online_label).all()


def test_first_rows_are_encoded(both: tuple[PreparedData, PreparedData]) -> None:
    offline, online = (first_rows(data.path, data.spec, "valid", 10) for data in both)
    assert offline.keys() == online.keys()
    for name, column in offline.items():
        np.testing.assert_equal(as_lists(online[name]), as_lists(column))


def as_lists(column: Any) -> list[Any]:
    return [column.values.tolist(), column.offsets.tolist()] if hasattr(column, "offsets") else column.tolist()
