from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rankline.training.models import MODELS
from rankline.training.models.config import StepConfig
from rankline.training.models.frameworks import PYTORCH
from rankline.training.models.torch_mlp import TorchMLPConfig
from rankline.training.models.torch_mlp.network import TorchMLP
from rankline.workflows.core.errors import SpecError
from rankline.workflows.schema.feature_spec import FeatureSpec

CONFIG, STEP = TorchMLPConfig(linear_terms=False), StepConfig()
TORCH_MODELS = [name for name, model in MODELS.items() if model.framework == PYTORCH]


def batch() -> dict[str, Any]:
    """Three rows; the lists are [3], [] and [4, 4]."""
    return {
        "userId": torch.tensor([[3], [4], [2]]),
        "movieId": torch.tensor([[5], [6], [7]]),
        "genres": (torch.tensor([3, 4, 4]), torch.tensor([[0], [1], [1]])),
        "age": torch.tensor([[0.1], [0.2], [0.4]]),
    }


def model_of(spec: FeatureSpec, **options: Any) -> TorchMLP:
    torch.manual_seed(0)
    model = replace(CONFIG, **options).build(spec, STEP)
    assert isinstance(model, TorchMLP)
    return model.eval()


@pytest.mark.parametrize("name", TORCH_MODELS)
def test_every_torch_model_takes_the_loaders_batches_and_gives_a_logit_per_row(name: str, spec: FeatureSpec) -> None:
    output = MODELS[name]().build(spec, STEP)(batch())
    assert (tuple(output.logit.shape), output.logit.dtype) == ((3,), torch.float32)
    assert output.penalty.shape == ()


def test_it_has_the_layers_of_the_notebooks_model(spec: FeatureSpec) -> None:
    layers = model_of(spec, embedding_dim_cap=12, hidden=(7, 5), dropout=0.25).layers
    kinds = ["Linear", "ReLU", "_BatchNorm", "Dropout"]
    assert [type(layer).__name__ for layer in layers] == [*kinds, *kinds, "Linear"]
    widths = [tuple(layer.weight.shape) for layer in layers if isinstance(layer, torch.nn.Linear)]
    assert widths == [(7, 12 + 12 + 4 + 1), (5, 7), (1, 5)]
    assert layers[3].p == 0.25


def test_lists_are_summed_and_empty_ones_are_zero(spec: FeatureSpec) -> None:
    model = model_of(spec, hidden=())
    with torch.no_grad():
        model.layers[0].weight.zero_()
        model.layers[0].weight[0, 16 + 12 : 16 + 12 + 4] = 1  # the genres' columns
        model.layers[0].bias.zero_()
    table = model.embeddings[2].weight.detach()
    expected = torch.stack([table[3].sum(), torch.tensor(0.0), 2 * table[4].sum()])
    torch.testing.assert_close(model(batch()).logit, expected)


def test_lists_of_fixed_length_score_as_the_same_lists_in_a_row(spec: FeatureSpec) -> None:
    model = model_of(spec)
    ragged = {**batch(), "genres": (torch.tensor([3, 4, 5, 6, 7, 3]), torch.tensor([[0], [2], [4]]))}
    fixed = {**batch(), "genres": torch.tensor([[3, 4], [5, 6], [7, 3]])}
    torch.testing.assert_close(model(fixed).logit, model(ragged).logit)


def test_numbers_are_normalised_by_their_batch_in_training(spec: FeatureSpec) -> None:
    model = model_of(spec)
    assert model.normalize is not None
    logit = model.train()(batch()).logit
    torch.testing.assert_close(model.normalize.running_mean, 0.1 * batch()["age"].mean(dim=0))
    scaled = {**batch(), "age": 1000 * batch()["age"] + 7}
    torch.testing.assert_close(model(scaled).logit, logit, atol=1e-2, rtol=0)


def test_a_batch_of_one_row_can_be_learnt_from(spec: FeatureSpec) -> None:
    model = model_of(spec).train()
    one = {
        "userId": torch.tensor([[3]]),
        "movieId": torch.tensor([[5]]),
        "genres": (torch.tensor([3]), torch.tensor([[0]])),
        "age": torch.tensor([[0.5]]),
    }
    before = [buffer.clone() for buffer in model.buffers()]
    model(one).logit.sum().backward()
    assert all(torch.equal(*pair) for pair in zip(before, model.buffers(), strict=True))
    assert model.layers[0].weight.grad.abs().sum() > 0


def test_linear_terms_add_one_weight_per_id_to_the_logit(spec: FeatureSpec) -> None:
    model = model_of(spec, linear_terms=True, linear_scale=2.0)
    before = model(batch()).logit
    with torch.no_grad():
        model.linear[0].weight[3] = 0.5
        model.linear[2].weight[4] = 0.25
    torch.testing.assert_close(model(batch()).logit - before, torch.tensor([1.0, 0.0, 1.0]))


@pytest.mark.parametrize("part", ["embedding", "linear"])
def test_l2_is_the_mean_squared_norm_of_the_looked_up_rows(spec: FeatureSpec, part: str) -> None:
    model = model_of(spec, linear_terms=True, **{f"l2_{part}": 0.5})
    tables = list(model.embeddings if part == "embedding" else model.linear)
    with torch.no_grad():
        for table in tables:
            torch.nn.init.normal_(table.weight)
        user, movie, genres = (table.weight for table in tables)
        lists = torch.stack([genres[3], 0 * genres[3], 2 * genres[4]])
        expected = 0.5 * sum((rows**2).sum() for rows in (user[[3, 4, 2]], movie[[5, 6, 7]], lists)) / 3
    penalty = model(batch()).penalty
    torch.testing.assert_close(penalty, expected)
    penalty.backward()
    assert user.grad.abs().sum(dim=1).nonzero().flatten().tolist() == [2, 3, 4]


@pytest.mark.parametrize("option", ["dropout", "embedding_dropout"])
def test_dropout_acts_in_training_only(spec: FeatureSpec, option: str) -> None:
    model = model_of(spec, embedding_init=1.0, **{option: 0.5})
    assert torch.equal(model(batch()).logit, model(batch()).logit)
    model.train()
    assert not torch.equal(model(batch()).logit, model(batch()).logit)


def test_reserved_ids_start_at_zero_and_known_ones_within_the_scale(spec: FeatureSpec) -> None:
    for table in model_of(spec, embedding_init=0.1).embeddings:
        weight = table.weight.detach()
        assert not weight[:3].any()
        assert 0.05 < weight[3:].abs().max() <= 0.1


def test_without_a_scale_tables_start_as_in_the_notebook(spec: FeatureSpec) -> None:
    weight = model_of(spec, embedding_init=0.0).embeddings[0].weight.detach().numpy()
    assert (np.mean(weight), np.std(weight)) == (pytest.approx(0, abs=0.1), pytest.approx(1, abs=0.1))


def test_continuous_lists_are_refused(spec: FeatureSpec) -> None:
    features = tuple(
        replace(feature, is_list=True, max_length=3) if feature.name == "age" else feature for feature in spec.features
    )
    with pytest.raises(SpecError, match=r"continuous features \['age'\] are lists"):
        CONFIG.build(replace(spec, features=features), STEP)
