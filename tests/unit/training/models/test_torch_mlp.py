from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rankline.training.models.config import StepConfig
from rankline.training.models.tabular import TorchMLPConfig
from rankline.training.models.tabular.torch_mlp import TorchMLP
from rankline.workflows.schema.feature_spec import FeatureSpec

CONFIG, STEP = TorchMLPConfig(linear_terms=False), StepConfig()


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


def test_batch_of_one_row_can_be_learnt_from(spec: FeatureSpec) -> None:
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


def test_default_embedding_init_matches_the_notebook(spec: FeatureSpec) -> None:
    weight = model_of(spec, embedding_init=0.0).embeddings[0].weight.detach().numpy()
    assert (np.mean(weight), np.std(weight)) == (pytest.approx(0, abs=0.1), pytest.approx(1, abs=0.1))
