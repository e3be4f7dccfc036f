"""What holds of the models of both frameworks for rows without histories."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
import torch

from rankline.training.models import MODELS
from rankline.training.models.config import NetworkConfig, StepConfig
from rankline.training.models.tabular import DCNv2Config, DeepFMConfig, MLPConfig, MMoEConfig, TorchMLPConfig
from rankline.workflows.core.errors import SpecError
from rankline.workflows.schema.feature_spec import FeatureSpec

STEP = StepConfig()
SMALL: dict[str, Any] = {"embedding_init": 0.5, "hidden": (16, 8), "linear_scale": 2.0}
USERS, MOVIES, AGES = [[3], [4], [2]], [[5], [6], [7]], [[0.1], [0.2], [0.4]]
# The lists of genres are [3], [] and [4, 4].


@dataclass(frozen=True, kw_only=True)
class KerasNetwork:
    model: Any

    @classmethod
    def of(cls, spec: FeatureSpec, config: NetworkConfig) -> "KerasNetwork":
        keras.utils.set_random_seed(0)
        return cls(model=config.build(spec, STEP))

    def logits(self, *, training: bool = False) -> Any:
        scores = self.model(KERAS_ROWS, training=training).numpy()[:, 0]
        return np.log(scores / (1 - scores))

    def penalty(self) -> float:
        self.model(KERAS_ROWS, training=True)
        return float(tf.add_n(self.model.losses))

    @property
    def tables(self) -> dict[str, Any]:
        return {name: table.numpy() for name, table in self.model.get_layer("features").tables.items()}

    def set_linear(self, name: str, row: int, weight: float) -> None:
        self.model.get_layer("linear").tables[name].scatter_update(tf.IndexedSlices([[weight]], [row]))


@dataclass(frozen=True, kw_only=True)
class TorchNetwork:
    model: Any
    names: list[str]

    @classmethod
    def of(cls, spec: FeatureSpec, config: NetworkConfig) -> "TorchNetwork":
        torch.manual_seed(0)
        return cls(model=config.build(spec, STEP).eval(), names=[feature.name for feature in spec.categorical])

    def logits(self, *, training: bool = False) -> Any:
        self.model.train(training)
        with torch.no_grad():
            found = self.model(TORCH_ROWS).logit.numpy()
        self.model.eval()
        return found

    def penalty(self) -> float:
        return float(self.model(TORCH_ROWS).penalty.detach())

    @property
    def tables(self) -> dict[str, Any]:
        tables = [table.weight.detach().numpy() for table in self.model.embeddings]
        return dict(zip(self.names, tables, strict=True))

    def set_linear(self, name: str, row: int, weight: float) -> None:
        with torch.no_grad():
            self.model.linear[self.names.index(name)].weight[row] = weight


KERAS_ROWS = {
    "userId": tf.constant(USERS, tf.int64),
    "movieId": tf.constant(MOVIES, tf.int64),
    "genres__values": tf.constant([[3], [4], [4]], tf.int64),
    "genres__nnzs": tf.constant([[1], [0], [2]], tf.int32),
    "age": tf.constant(AGES),
}
TORCH_ROWS = {
    "userId": torch.tensor(USERS),
    "movieId": torch.tensor(MOVIES),
    "genres": (torch.tensor([3, 4, 4]), torch.tensor([[0], [1], [1]])),
    "age": torch.tensor(AGES),
}
Network = KerasNetwork | TorchNetwork
NETWORKS: dict[str, tuple[Callable[..., Network], NetworkConfig]] = {
    "mlp": (KerasNetwork.of, MLPConfig(**SMALL)),
    "dcnv2": (KerasNetwork.of, DCNv2Config(**SMALL)),
    "deepfm": (KerasNetwork.of, DeepFMConfig(**SMALL, embedding_dim=4)),
    "mmoe": (KerasNetwork.of, MMoEConfig(**SMALL, experts=3, tower=(4,))),
    "torch_mlp": (TorchNetwork.of, TorchMLPConfig(**SMALL)),
}
every_model = pytest.mark.parametrize("name", NETWORKS)


def network_of(name: str, spec: FeatureSpec, **choices: Any) -> Network:
    make, config = NETWORKS[name]
    return make(spec, replace(config, **choices))


def test_contract_has_every_model_that_takes_lists() -> None:
    networks = {name for name, kind in MODELS.items() if issubclass(kind, NetworkConfig) and not kind.takes_histories}
    assert networks - {"dlrm"} == {*NETWORKS}


@every_model
def test_model_gives_each_row_a_score_of_its_own(name: str, spec: FeatureSpec) -> None:
    logits = network_of(name, spec).logits()
    assert (logits.shape, logits.dtype) == ((3,), np.float32)
    assert len(np.unique(logits)) == 3


@every_model
def test_linear_terms_add_a_weight_per_id_to_the_logit(name: str, spec: FeatureSpec) -> None:
    network = network_of(name, spec)
    before = network.logits()
    network.set_linear("userId", 3, 0.5)
    network.set_linear("genres", 4, 0.25)
    num_counted = 2 if name == "torch_mlp" else 1  # PyTorch's lists are summed, Keras's averaged
    np.testing.assert_allclose(network.logits() - before, [1.0, 0.0, 0.5 * num_counted], atol=1e-5)


@every_model
@pytest.mark.parametrize("option", ["dropout", "embedding_dropout"])
def test_dropout_acts_in_training_only(name: str, spec: FeatureSpec, option: str) -> None:
    network = network_of(name, spec, **{"embedding_init": 1.0, option: 0.5})
    np.testing.assert_array_equal(network.logits(), network.logits())
    assert not np.array_equal(network.logits(training=True), network.logits(training=True))


@every_model
def test_reserved_ids_start_at_zero_and_known_ones_within_the_scale(name: str, spec: FeatureSpec) -> None:
    for table in network_of(name, spec, embedding_init=0.1).tables.values():
        assert not table[:3].any()
        assert 0.05 < np.abs(table[3:]).max() <= 0.1


@pytest.mark.parametrize("name", ["mlp", "torch_mlp"])
def test_embedding_dimensions_follow_the_spec_up_to_the_cap(name: str, spec: FeatureSpec) -> None:
    shapes = {column: table.shape for column, table in network_of(name, spec, embedding_dim_cap=12).tables.items()}
    assert shapes == {"userId": (60, 12), "movieId": (40, 12), "genres": (8, 4)}


@pytest.mark.parametrize("name", ["mlp", "torch_mlp"])
def test_l2_is_the_mean_squared_norm_of_the_looked_up_rows(name: str, spec: FeatureSpec) -> None:
    network = network_of(name, spec, l2_embedding=0.5)
    user, movie, genres = (network.tables[column] for column in ("userId", "movieId", "genres"))
    lists = np.stack([genres[3], 0 * genres[3], (2 if name == "torch_mlp" else 1) * genres[4]])
    numbers = np.array(AGES if name == "mlp" else [])  # Keras's layer gives them beside the embeddings: a constant
    looked_up = (user[[3, 4, 2]], movie[[5, 6, 7]], lists, numbers)
    expected = 0.5 * sum((rows**2).sum() for rows in looked_up) / 3
    assert network.penalty() == pytest.approx(expected, rel=1e-5)


@every_model
def test_list_of_numbers_is_refused_by_name(name: str, spec: FeatureSpec) -> None:
    features = [replace(of, is_list=True, max_length=3) if of.name == "age" else of for of in spec.features]
    with pytest.raises(SpecError, match=r"continuous features \['age'\] are lists"):
        network_of(name, replace(spec, features=tuple(features)))
