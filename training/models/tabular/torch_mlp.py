"""The model of NVIDIA's PyTorch MovieLens notebook: embeddings (summed for lists) and Linear-ReLU-BatchNorm layers."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.nn import functional

from rankline.training.models.config import StepConfig, check_numbers
from rankline.training.models.tabular import TorchMLPConfig
from rankline.workflows.schema.feature_spec import FIRST_UNSEEN_ID, Feature, FeatureSpec
from rankline.workflows.schema.targets import BINARY, MULTICLASS, REGRESSION, Head


class Output(NamedTuple):
    """A model's output for N rows, as expected by `rankline.training.trainers.torch`.

    Attributes:
        logit: logits of the heads, shape (N,) for a single number, else (N, sum of the heads' widths); the sigmoid of a
            binary one is the probability.
        penalty: added to the loss; a scalar.
    """

    logit: torch.Tensor
    penalty: torch.Tensor


class TorchMLP(nn.Module):
    """Dense layers over embeddings of single ids, a summed embedding bag per list, and normalized numbers.

    The architecture is that of `nvtabular.framework_utils.torch.models.Model`. The notebook fits its output directly to
    the label with the mean squared error; here the output is a logit and fitted with binary cross-entropy, so that
    scores are probabilities. `linear_terms` adds the weights of the row's ids to the logit, summed over lists.

    Call with the inputs of a batch of `rankline.training.data.loader.torch.TorchAsyncItr`.
    """

    def __init__(self, spec: FeatureSpec, model: TorchMLPConfig, _: StepConfig | None = None) -> None:
        super().__init__()
        check_numbers(spec.continuous)
        self._choices = model
        self._ids = [feature.name for feature in spec.categorical]
        self._numbers = [feature.name for feature in spec.continuous]
        dims = [model.table_width(feature) for feature in spec.categorical]
        self.embeddings = nn.ModuleList(map(_table, spec.categorical, dims))
        for table in self.embeddings:
            if model.embedding_init:
                _start_uniform(table, model.embedding_init)
        self._width = outputs = sum(head.width for head in spec.heads)
        self.linear = nn.ModuleList(_table(feature, outputs) for feature in spec.categorical if model.linear_terms)
        for table in self.linear:
            nn.init.zeros_(cast(torch.Tensor, table.weight))
        self.embedding_dropout = nn.Dropout(model.embedding_dropout)
        self.normalize = _BatchNorm(len(self._numbers)) if self._numbers else None
        layers: list[nn.Module] = []
        width = sum(dims) + len(self._numbers)
        for units in model.hidden:
            layers += [nn.Linear(width, units), nn.ReLU(), _BatchNorm(units), nn.Dropout(model.dropout)]
            width = units
        self.layers = nn.Sequential(*layers, nn.Linear(width, outputs))

    def forward(self, inputs: Mapping[str, Any]) -> Output:
        embedded = torch.cat(self._look_up(self.embeddings, inputs), dim=1)
        parts = [self.embedding_dropout(embedded)]
        if self.normalize is not None:
            parts.append(self.normalize(torch.cat([inputs[name] for name in self._numbers], dim=1)))
        logit = self.layers(torch.cat(parts, dim=1) if len(parts) > 1 else parts[0])
        penalty = torch.zeros((), device=logit.device)
        if self._choices.l2_embedding:
            penalty = penalty + self._choices.l2_embedding * _mean_squared_norm(embedded)
        if self.linear:
            rows = self._look_up(self.linear, inputs)
            weights = torch.cat(rows, dim=1)
            summed = weights.sum(dim=1, keepdim=True) if self._width == 1 else torch.stack(rows).sum(dim=0)
            logit = logit + self._choices.linear_scale * summed
            if self._choices.l2_linear:
                penalty = penalty + self._choices.l2_linear * _mean_squared_norm(weights)
        return Output(logit.reshape(-1) if self._width == 1 else logit, penalty)

    def _look_up(self, tables: nn.ModuleList, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
        return [_rows(table, inputs[name]) for name, table in zip(self._ids, tables, strict=True)]


class _BatchNorm(nn.BatchNorm1d):
    """Batch normalization that uses the running statistics for a batch with a single row, which has no variance."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.training and len(input) == 1:
            return functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return super().forward(input)


def _table(feature: Feature, dim: int) -> nn.Module:
    num_ids = feature.embedding_shape[0]
    return nn.EmbeddingBag(num_ids, dim, mode="sum") if feature.is_list else nn.Embedding(num_ids, dim)


def _rows(table: nn.Module, ids: Any) -> torch.Tensor:
    """Look up the embeddings of ids (N, 1), fixed-length lists (N, W), or lists given as `(values, offsets)`."""
    if isinstance(ids, tuple):
        values, offsets = ids
        return cast(torch.Tensor, table(values, offsets.reshape(-1)))
    return cast(torch.Tensor, table(ids if isinstance(table, nn.EmbeddingBag) else ids.reshape(-1)))


def _start_uniform(table: nn.Module, scale: float) -> None:
    """Initialize the weights of ids uniformly in [-`scale`, `scale`], and the weights of reserved ids to zero."""
    weight = cast(torch.Tensor, table.weight)
    nn.init.uniform_(weight, -scale, scale)
    with torch.no_grad():
        weight[: FIRST_UNSEEN_ID + 1] = 0


def _mean_squared_norm(rows: torch.Tensor) -> torch.Tensor:
    return rows.square().mean(dim=0).sum()


def loss_of(heads: Sequence[Head], labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return the weighted mean loss of all heads as a scalar; see `rankline.training.trainers.keras.loss_of`.

    Args:
        heads: in the order of labels and logits.
        labels: (N,), or (N, number of heads), NaN if missing.
        logits: (N,), or (N, sum of the heads' widths).
    """
    if len(heads) == 1:
        return _row_losses(heads[0], labels, logits).mean()
    total = torch.zeros((), device=logits.device)
    for head, own, logit in zip(heads, labels.unbind(dim=1), _of_heads(heads, logits), strict=True):
        has_label = own.isfinite()
        safe = torch.where(has_label, own, torch.zeros_like(own))
        losses = _row_losses(head, safe, logit[:, 0] if head.width == 1 else logit)
        total = total + head.weight * (losses * has_label).mean()
    return total / sum(head.weight for head in heads)


def outputs_of(heads: Sequence[Head], logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return each head's output (N, width): probabilities or, for regression, predictions in the label's unit."""
    columns = logits[:, None] if logits.dim() == 1 else logits
    return tuple(_activated(head, own) for head, own in zip(heads, _of_heads(heads, columns), strict=True))


def _of_heads(heads: Sequence[Head], logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    ends = list(accumulate(head.width for head in heads))
    return tuple(logits[:, end - head.width : end] for head, end in zip(heads, ends, strict=True))


def _activated(head: Head, logit: torch.Tensor) -> torch.Tensor:
    if head.task == REGRESSION:
        return logit * head.deviation + head.mean
    return torch.sigmoid(logit) if head.task == BINARY else torch.softmax(logit, dim=1)


def _row_losses(head: Head, labels: torch.Tensor, logit: torch.Tensor) -> torch.Tensor:
    """Return the loss of each row, of shape (N,), for labels (N,) and logits (N,), or (N, C) for C classes."""
    if head.task == BINARY:
        return functional.binary_cross_entropy_with_logits(logit, labels, reduction="none")
    if head.task == MULTICLASS:
        return functional.cross_entropy(logit, labels.long(), reduction="none")
    return ((labels - head.mean) / head.deviation - logit).square()
