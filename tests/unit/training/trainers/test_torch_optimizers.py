from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rankline.training.config.train import DECAYS, TrainConfig
from rankline.training.models.torch_mlp import TorchMLPConfig
from rankline.training.trainers.lr_schedule import Schedule
from rankline.training.trainers.precision import GROWTH_STEPS, INITIAL_SCALE
from rankline.training.trainers.torch_optimizers import OPTIMIZERS, LossScale, Optimizers, check_optimizer
from rankline.workflows.core.errors import ConfigError

CONFIG = TrainConfig(
    model=TorchMLPConfig(linear_terms=False), optimizer="sgd", learning_rate=0.1, weight_averaging=False, batch_size=4
)


class Tiny(torch.nn.Module):
    """A table, a bag and one dense weight, all starting at 1."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(6, 2)
        self.bag = torch.nn.EmbeddingBag(6, 2, mode="sum")
        self.dense = torch.nn.Parameter(torch.ones(2))
        for weight in (self.table.weight, self.bag.weight):
            torch.nn.init.ones_(weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return ((self.table(ids) + self.bag(ids[:, None])) * self.dense).sum(dim=1).square().mean()


def stepped(ids: list[list[int]], num_steps: int = 10, **options: Any) -> tuple[Tiny, list[torch.Tensor]]:
    """The model after one step per entry of `ids`, and the table after each."""
    model = Tiny()
    optimizers = Optimizers(model, CONFIG.with_choices(**options), num_steps)
    tables = []
    for batch in ids:
        optimizers.step(model(torch.tensor(batch)))
        tables.append(model.table.weight.detach().clone())
    return model, tables


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_brings_the_loss_down_and_touches_the_rows_of_the_batch(name: str) -> None:
    model, tables = stepped([[1, 2, 2, 4]] * 5, optimizer=name, learning_rate=0.01)
    assert model(torch.tensor([1, 2, 2, 4])) < Tiny()(torch.tensor([1, 2, 2, 4]))
    assert (tables[-1] != 1).any(dim=1).nonzero().flatten().tolist() == [1, 2, 4]
    assert model.table.weight.grad.is_sparse == model.bag.weight.grad.is_sparse == (name != "adam")


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_a_known_name_is_pytorchs_own_optimizer(name: str) -> None:
    kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}[name]
    reference = Tiny()
    optimizer = kind(reference.parameters(), lr=0.1)
    batches = [[1, 2, 2, 4], [2, 3, 3, 3], [1, 1, 5, 0]]
    for batch in batches:
        optimizer.zero_grad()
        reference(torch.tensor(batch)).backward()
        optimizer.step()
    model, _ = stepped(batches, optimizer=name)
    for got, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(got, expected)


def test_lazy_adam_leaves_rows_alone_that_adam_moves_on() -> None:
    batches = [[1, 1, 1, 1], [2, 2, 2, 2]]
    lazy, adam = (stepped(batches, optimizer=name)[1] for name in ("lazy_adam", "adam"))
    assert torch.equal(lazy[1][1], lazy[0][1])
    assert not torch.equal(adam[1][1], adam[0][1])
    torch.testing.assert_close(lazy[0], adam[0])


def test_rowwise_adagrad_divides_by_the_root_of_the_rows_mean_squares() -> None:
    model = Tiny()
    optimizers = Optimizers(model, replace(CONFIG, optimizer="rowwise_adagrad", table_lr_scale=2.0), 10)
    table, total = np.ones((6, 2)), np.full(6, 1 / 16)
    for batch in ([1, 2, 2, 4], [2, 3, 3, 3]):
        optimizers.step(model(torch.tensor(batch)))
        gradient = model.table.weight.grad.to_dense().numpy()
        total += np.mean(gradient**2, axis=1)
        table -= 2.0 * 0.1 * gradient / np.sqrt(total)[:, None]
        np.testing.assert_allclose(model.table.weight.detach(), table, rtol=1e-5)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_the_learning_rate_follows_the_schedule(decay: str, warmup_steps: int) -> None:
    model, schedule = Tiny(), Schedule(num_steps=6, decay=decay, warmup_steps=warmup_steps, decay_start_step=3)
    options = {"learning_rate_decay": decay, "warmup_steps": warmup_steps, "decay_start_step": 3}
    optimizers = Optimizers(model, CONFIG.with_choices(**options), num_steps=6)
    for step in range(6):
        before = model.table.weight.detach().clone()
        optimizers.step(model(torch.tensor([1])))
        moved = before - model.table.weight.detach()
        gradient = model.table.weight.grad.to_dense()[1]
        torch.testing.assert_close(moved[1], 0.1 * float(schedule.factor(step)) * gradient)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weight_decay_is_decoupled_and_spares_tables(name: str) -> None:
    plain, decayed = (
        stepped([[1, 1, 1, 1]], optimizer=name, weight_decay=decay, learning_rate_decay="linear")[0]
        for decay in (0.0, 0.5)
    )
    torch.testing.assert_close(decayed.table.weight, plain.table.weight)
    torch.testing.assert_close(plain.dense - decayed.dense, torch.full((2,), 0.1 * 0.5))


@pytest.mark.parametrize("name", ["lazy_adam", "rowwise_adagrad"])
def test_table_lr_scale_moves_tables_only(name: str) -> None:
    small, large = (stepped([[1]], optimizer=name, table_lr_scale=scale)[0] for scale in (1.0, 3.0))
    torch.testing.assert_close(1 - large.table.weight, 3 * (1 - small.table.weight))
    torch.testing.assert_close(large.dense, small.dense)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "magic"}, "optimizer is 'magic'. Available for torch_mlp: adagrad, adam, lazy_adam, "),
        ({"optimizer": "sgd", "table_lr_scale": 2.0}, "'sgd' has one learning rate, got table_lr_scale 2"),
        ({"optimizer": "adam", "table_lr_scale": 2.0}, "'adam' has one learning rate"),
    ],
)
def test_what_it_cannot_do_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_optimizer(CONFIG.with_choices(**options))


def gradients(model: Tiny) -> list[torch.Tensor]:
    return [weight.grad.to_dense() for weight in model.parameters()]


def test_gradients_of_a_scaled_loss_are_divided_and_stay_sparse() -> None:
    plain, scaled, scale = Tiny(), Tiny(), LossScale()
    for model in (plain, scaled):
        model.table.sparse = True
    batch = torch.tensor([1, 2, 2])
    plain(batch).backward()
    (scaled(batch) * scale.scale).backward()
    assert scale.unscale(list(scaled.parameters()))
    assert scaled.table.weight.grad.is_sparse
    for got, expected in zip(gradients(scaled), gradients(plain), strict=True):
        torch.testing.assert_close(got, expected)
    assert (scale.scale, scale.good_steps) == (INITIAL_SCALE, 1)


def test_the_scale_doubles_after_many_good_steps() -> None:
    weight, scale, seen = torch.nn.Parameter(torch.ones(2)), LossScale(), []
    scale.good_steps = GROWTH_STEPS - 2
    for _ in range(3):
        weight.grad = torch.ones(2)
        scale.unscale([weight])
        seen.append((scale.scale, scale.good_steps))
    assert seen == [(INITIAL_SCALE, GROWTH_STEPS - 1), (2 * INITIAL_SCALE, 0), (2 * INITIAL_SCALE, 1)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_remembers_has_its_names_from_the_start(name: str) -> None:
    model, _ = stepped([], optimizer=name)
    optimizers = Optimizers(model, replace(CONFIG, optimizer=name), 10)
    start = {entry: np.asarray(value).copy() for entry, value in optimizers.state().items()}
    assert all(np.array_equal(weight.detach(), np.ones(weight.shape)) for weight in model.parameters())
    assert all(not value.any() for entry, value in start.items() if entry.endswith(("step", "exp_avg", "steps")))
    optimizers.step(model(torch.tensor([1, 2])))
    assert optimizers.state().keys() == start.keys()
    assert optimizers.state()["steps"] == 1
