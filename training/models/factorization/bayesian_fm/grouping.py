"""Conversion of columns of ids to the groups of a Gibbs chain."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankline.training.models.factorization.bayesian_fm.gibbs import Block, GroupedColumn
from rankline.workflows.nvt.keys import sorted_distinct

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A column of the rows with groups numbered from 0.

    Attributes:
        ids: distinct ids, sorted.
        frequencies: number of occurrences of each id.
        groups: group of each row, int32 (N,).
        own: the ids as features of the groups.
    """

    ids: Array
    frequencies: Array
    groups: Array
    num_groups: int
    own: Block
    is_list: bool

    @classmethod
    def of(cls, ids: Array) -> "Encoded":
        """Encode single ids; each id is a group."""
        distinct, groups, counts = np.unique(ids, return_inverse=True, return_counts=True)
        return cls(
            ids=distinct,
            frequencies=counts,
            groups=groups.astype(np.int32),
            num_groups=len(distinct),
            own=Block.identity(len(distinct)),
            is_list=False,
        )

    @classmethod
    def of_lists(cls, ids: Array) -> "Encoded":
        """Encode lists of ids (N, W), padded with zeros. Each distinct list is a group, and its ids have equal
        weights.
        """
        lists, groups, counts = np.unique(ids, axis=0, return_inverse=True, return_counts=True)
        of_entry, place = np.nonzero(lists)
        distinct, features = np.unique(lists[of_entry, place], return_inverse=True)
        shares = 1 / np.bincount(of_entry, minlength=len(lists))[of_entry]
        return cls(
            ids=distinct,
            frequencies=np.bincount(features, counts[of_entry], minlength=len(distinct)),
            groups=groups.reshape(-1).astype(np.int32),
            num_groups=len(lists),
            own=Block.of_entries(features, of_entry, shares, len(distinct)),
            is_list=True,
        )

    def known(self, *beside: Block) -> GroupedColumn:
        return GroupedColumn(groups=self.groups, num_groups=self.num_groups, blocks=(self.own, *beside))


def partners(side: Encoded, other: Encoded) -> Block:
    """Return features for one side's groups: the other side's groups in the same rows, weighted 1/√(their number)."""
    pairs = sorted_distinct(side.groups.astype(np.int64) * other.num_groups + other.groups)
    groups, features = np.divmod(pairs, other.num_groups)
    weights = 1 / np.sqrt(np.bincount(groups, minlength=side.num_groups))[groups]
    return Block.of_entries(features, groups, weights, other.num_groups)
