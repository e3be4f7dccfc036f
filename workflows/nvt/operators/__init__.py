"""Operators that NVTabular 23.8 lacks or implements incorrectly on CPUs.

Saved workflows refer to them by this package, so classes may move between its modules. Operators that are supported in
served graphs have a lowering in `workflows/compiler/operators`.
"""

from rankline.workflows.nvt.operators.categorify import Categorify, HashedCategorify, KnownIds, OrderedCategorify
from rankline.workflows.nvt.operators.cleaning import Bucketize, DateParts, EmptyToNull, Finite, GreaterThan, HexToInt
from rankline.workflows.nvt.operators.hashing import HashShare, StableHashBucket, StableHashedCross
from rankline.workflows.nvt.operators.item_attributes import ItemAttributes, SharedCategorify
from rankline.workflows.nvt.operators.lists import NullToEmptyList, PaddedListSlice, SameLengths, VectorElements

__all__ = [
    "Bucketize", "Categorify", "DateParts", "EmptyToNull", "Finite", "GreaterThan", "HashShare", "HashedCategorify",
    "HexToInt", "ItemAttributes", "KnownIds", "NullToEmptyList", "OrderedCategorify", "PaddedListSlice", "SameLengths",
    "SharedCategorify", "StableHashBucket", "StableHashedCross", "VectorElements",
]  # fmt: skip

for _name in __all__:
    globals()[_name].__module__ = __name__
