"""Losses and outputs of the heads of PyTorch models. `keras_losses` has the losses of Keras models."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch.nn import functional

from rankline.workflows.schema.targets import BINARY, MULTICLASS, REGRESSION, Head


def loss_of(heads: Sequence[Head], labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return the weighted mean of the losses of all heads, a scalar; see
    `rankline.training.trainers.keras_losses.loss_of`.

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
    """Return the output of each head, (N, width): probabilities, or a number in the unit of its label."""
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
    """Return the loss of each row, (N,), from labels (N,) and logits (N,), or (N, C) for C classes."""
    if head.task == BINARY:
        return functional.binary_cross_entropy_with_logits(logit, labels, reduction="none")
    if head.task == MULTICLASS:
        return functional.cross_entropy(logit, labels.long(), reduction="none")
    return ((labels - head.mean) / head.deviation - logit).square()
