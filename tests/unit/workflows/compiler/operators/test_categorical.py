from typing import Any

import numpy as np
import pandas as pd

from rankline.workflows.nvt.compat import ops
from rankline.workflows.nvt.operators import (
    Categorify,
    EmptyToNull,
    HashedCategorify,
    HashShare,
    HexToInt,
    StableHashBucket,
    StableHashedCross,
)
from tests.oracles.lowering import assert_same, fitted, served, training_rows

ALL = ["key", "word", "float", "float32", "whole", "narrow", "flag", "words", "keys", "floats"]
GRAPHS = {
    "all types": lambda: ALL >> ops.Categorify(),
    "freq_threshold": lambda: ["key", "word", "words"] >> ops.Categorify(freq_threshold=8),
    "max_size": lambda: ["key", "word", "words"] >> ops.Categorify(max_size=6),
    "dtype": lambda: ["key", "words"] >> ops.Categorify(dtype=np.int32),
    "split_out": lambda: ["key", "word"] >> ops.Categorify(split_out=3),
    "joint": lambda: [["word", "other"], "key"] >> ops.Categorify(encode_type="joint"),
    "joint lists": lambda: [["other", "words"]] >> ops.Categorify(encode_type="joint"),
    "combo": lambda: [["word", "other"], ["key", "whole"], "word"] >> ops.Categorify(encode_type="combo"),
    "combo of three": lambda: [["other", "float32", "small"]] >> ops.Categorify(encode_type="combo", name_sep="+"),
    "HashedCategorify": lambda: (
        ["key", "word", "float", "words", "keys"] >> HashedCategorify(num_buckets=3, freq_threshold=8)
    ),
    "HashedCategorify by column": lambda: (
        ["key", "word"] >> HashedCategorify(num_buckets={"key": 2, "word": 5}, max_size=9)
    ),
    "StableHashBucket": lambda: ["key", "word", "float", "words", "keys"] >> StableHashBucket(7),
    "StableHashBucket by column": lambda: ["key", "word"] >> StableHashBucket({"word": 7, "key": 2}),
    "HashShare": lambda: ["key", "word", "float", "words", "keys"] >> HashShare(7),
    "EmptyToNull": lambda: (
        (["word", "words"] >> EmptyToNull() >> Categorify())
        + (["other"] >> EmptyToNull() >> HashedCategorify(num_buckets=3))
        + (["code"] >> EmptyToNull() >> StableHashBucket(7))
    ),
    "HexToInt": lambda: ["code", "word", "words"] >> HexToInt(),
    "HexToInt, Categorify": lambda: ["code", "word", "words"] >> HexToInt() >> Categorify(),
    "HexToInt, HashedCategorify": lambda: ["code"] >> HexToInt() >> HashedCategorify(num_buckets=3, freq_threshold=8),
    "HexToInt, HashShare": lambda: ["code", "words"] >> HexToInt() >> HashShare(5),
    "StableHashedCross": lambda: [["key", "word"], ["small", "other", "float"]] >> StableHashedCross(11),
}


def test_missing_integer_is_null_though_the_vocabulary_had_none(tmp_path: Any) -> None:
    _, plan = fitted(tmp_path, training_rows(), lambda: ["maybe", "narrow"] >> ops.Categorify())
    request = pd.DataFrame({"maybe": [1.0, np.nan], "narrow": [1.0, np.nan]})
    assert served(plan, request)["maybe"].tolist()[1] == 1
    assert served(plan, request)["narrow"].tolist()[1] == 1
    assert served(plan, request)["maybe"].tolist()[0] > 2


def test_batch_that_is_missing_whole_is_null(tmp_path: Any) -> None:
    workflow, plan = fitted(tmp_path, training_rows(), lambda: ["word", "float"] >> Categorify())
    request = pd.DataFrame({"word": [None, None], "float": [np.nan, np.nan]})
    answer = served(plan, request)
    assert {name: ids.tolist() for name, ids in answer.items()} == {"word": [1, 1], "float": [1, 1]}
    assert_same(workflow, plan, request)


def test_unseen_values_spread_over_buckets_and_one_value_keeps_its_own(tmp_path: Any) -> None:
    _, plan = fitted(tmp_path, training_rows(), lambda: ["word"] >> HashedCategorify(num_buckets=4, max_size=8))
    unseen = [f"unseen {i}" for i in range(64)]
    ids = served(plan, pd.DataFrame({"word": unseen}))["word"]
    assert set(ids.tolist()) == {2, 3, 4, 5}
    alone = [served(plan, pd.DataFrame({"word": [word]}))["word"][0] for word in unseen]
    assert ids.tolist() == alone


def test_vocabulary_that_was_given_is_looked_up(tmp_path: Any) -> None:
    vocabs = {"other": pd.Series(["é", "b"]), "small": pd.Series([3, 1])}
    workflow, plan = fitted(
        tmp_path, training_rows(), lambda: ["other", "small"] >> ops.Categorify(vocabs=vocabs, out_path=str(tmp_path))
    )
    assert_same(workflow, plan, training_rows()[["other", "small"]])


REFUSED = [
    (lambda: ["key"] >> ops.Categorify(num_buckets=3), "num_buckets=….*the row position.*operators.HashedCategorify"),
    (lambda: ["key"] >> ops.Categorify(single_table=True), r"Categorify\(single_table=True\).*ids of known values"),
    (lambda: ["key"] >> ops.HashBucket(3), r"HashBucket \(columns \['key'\]\).*row's position.*StableHashBucket"),
    (lambda: [["key", "word"]] >> ops.HashedCross(3), "HashedCross.*row's position.*StableHashedCross"),
    (
        lambda: [["words", "word"]] >> StableHashedCross(3),
        r"StableHashedCross on \['words'\]: these columns contain lists",
    ),
    (
        lambda: ["key"] >> HexToInt(),
        r"HexToInt on \['key'\]: these columns contain numbers, expected hexadecimal strings",
    ),
]
"""Graph → why it cannot be compiled, as in each file of this folder; `test_lowerings.py` asks."""
