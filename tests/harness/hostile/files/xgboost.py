"""XGBoost's JSON and UBJSON files whose numbers contradict each other: XGBoost allocates, reads and writes by them."""

import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from tests.harness.hostile.files import Case, Family
from tests.harness.hostile.files.lightgbm import open_and_run

SPELLINGS = ("-1", "2000000000", "2147483647", "1e9", "0x10", " 5", "+5", "5\0", "1_0", "٣", "nan", "")
VALUES: tuple[Any, ...] = (
    *(*SPELLINGS, -1, 0, 2, 5, 10**9, 2**31 - 1, -(2**31), 2**63, 10**400, 0.5, 1e300, float("nan"), float("inf")),
    *(None, True, [], {}, [[]], ["1"], [0] * 100),
)
SIZES = ("num_class", "num_feature", "num_target", "base_score")
OF_TREES = ("num_parallel_tree", "num_trees")
OF_A_TREE = (
    *("left_children", "right_children", "parents", "split_indices", "split_conditions", "default_left", "split_type"),
    *("base_weights", "sum_hessian", "loss_changes", "categories", "categories_nodes", "categories_segments", "id"),
)


@cache
def honest_texts() -> dict[str, str]:
    """By what they are; made by another process, since XGBoost hangs in a fork of one that has used it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return {name: pool.submit(_trained, name).result() for name in ("plain", "3 classes", "dart")}


def _trained(name: str) -> str:
    """Two steps."""
    import xgboost

    rng = np.random.default_rng(1)
    is_wide = name == "3 classes"
    data = xgboost.DMatrix(rng.normal(size=(60, 3)), rng.integers(0, 3 if is_wide else 2, 60))
    options: dict[str, Any] = {"max_depth": 2, "nthread": 1, "verbosity": 0}
    options |= {"objective": "multi:softprob", "num_class": 3} if is_wide else {}
    options |= {"booster": "dart", "rate_drop": 0.5} if name == "dart" else {}
    return bytes(xgboost.train(options, data, 2).save_raw("json")).decode()


def mutant(honest: str, seed: int) -> str:
    """One to three values replaced, of any depth."""
    rng, changed = random.Random(seed), json.loads(honest)
    for _ in range(rng.randint(1, 3)):
        part, key = rng.choice(list(_places(changed)))
        part[key] = rng.choice(VALUES)
    return _dumped(changed)


def _places(part: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(part) if isinstance(part, dict) else range(len(part)):
        yield part, key
        if isinstance(part[key], dict | list):
            yield from _places(part[key])


def _dumped(changed: Any) -> str:
    return json.dumps({name: changed[name] for name in ("version", "learner") if name in changed})


def _put(path: tuple[Any, ...], value: Any) -> Callable[[Any], Any]:
    def change(honest: Any) -> None:
        part = honest["learner"]
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = value

    return change


def _chain(depth: int) -> dict[str, Any]:
    """Each split has a leaf and the next split."""
    size = 2 * depth + 1
    is_split = [place % 2 == 0 and place < 2 * depth for place in range(size)]
    zeros = [0] * size
    return {
        "left_children": [place + 1 if split else -1 for place, split in enumerate(is_split)],
        "right_children": [place + 2 if split else -1 for place, split in enumerate(is_split)],
        "parents": [2**31 - 1, *((place - 1) // 2 * 2 for place in range(1, size))],
        "split_conditions": [0.5] * size,
        "tree_param": {"num_nodes": str(size), "num_feature": "3", "num_deleted": "0", "size_leaf_vector": "1"},
        **dict.fromkeys(("split_indices", "default_left", "split_type"), zeros),
        "id": 0,
    }


def _changes() -> Iterator[tuple[str, Callable[[Any], Any], bool]]:
    """Name, what is changed in an honest document, and whether that must be refused."""
    model = ("gradient_booster", "model")
    for value in SPELLINGS:
        for name in SIZES:
            yield f"{name} {value!r}", _put(("learner_model_param", name), value), False
        for name in OF_TREES:
            yield f"{name} {value!r}", _put((*model, "gbtree_model_param", name), value), False
        yield f"best_iteration {value!r}", _put(("attributes", "best_iteration"), value), False
    for target in (-1, 1, 2, 10**9, 0.5, "0"):
        yield f"tree_info {target!r}", _put((*model, "tree_info", 1), target), True
    for name in OF_A_TREE:
        for number in (-5, 10**9, 0.5):
            path = (*model, "trees", 1, name) if name == "id" else (*model, "trees", 1, name, slice(0, 1))
            yield f"{name} {number!r}", _put(path, number if name == "id" else [number]), False
        yield f"{name} empty", _put((*model, "trees", 1, name), []), False
    yield "a cycle", _put((*model, "trees", 0, "left_children", 0), 0), True
    yield "a very deep tree", _put((*model, "trees", 0), _chain(100_000)), True
    yield "a feature fewer", _put(("learner_model_param", "num_feature"), "1"), True
    yield "names of other features", _put(("feature_names",), ["a", "b"]), True
    yield "many names", _put(("feature_names",), [str(number) for number in range(300_000)]), True
    yield "a drop that is none", _put(("gradient_booster", "weight_drop"), ["x", 1]), True
    yield (
        "a huge class of the objective",
        _put(("objective", "softmax_multiclass_param"), {"num_class": "9" * 9}),
        False,
    )
    yield "a long parameter", _put(("objective", "reg_loss_param"), {"scale_pos_weight": "1" * 1000}), True
    yield "ends of iterations", _put((*model, "iteration_indptr"), [0, 10**9, 10**9]), False
    yield "classes without trees", _put(("learner_model_param", "num_class"), "2000000000"), True
    yield "features without end", _put(("learner_model_param", "num_feature"), "2147483647"), True


UBJSON = {
    "a list of many numbers": b"[$d#l\x7f\xff\xff\xff",
    "a list of many large numbers": b"[$D#L\x7f\xff\xff\xff\xff\xff\xff\xff",
    "a list of many values": b"[#l\x7f\xff\xff\xff",
    "a list of many lists": b"[#l\x7f\xff\xff\xff" + b"[#l\x7f\xff\xff\xff" * 500,
    "a list of many constants": b"[$T#l\x7f\xff\xff\xff",
    "a negative number of values": b"[#l\x80\x00\x00\x00",
    "a negative list of numbers": b"[$i#i\xff",
    "a long string": b"SL\x7f\xff\xff\xff\xff\xff\xff\xff",
    "a negative string": b"SL\xff\xff\xff\xff\xff\xff\xff\xff",
    "a string whose length is a list": b"S[]",
    "a length of a length": b"S" * 100_000,
    "deep lists": b"[" * 1_000_000,
    "deep objects": b"{i\x01a" * 1_000_000,
    "deep lists of one": b"[#i\x01" * 1_000_000,
    "nothing": b"",
    "an unknown type": b"[$X#i\x01",
    "a string of no text": b"Si\x02\xff\xfe",
}


def _cases() -> Iterator[Case]:
    honest = json.loads(honest_texts()["plain"])
    for name, change, is_refused in _changes():
        changed = deepcopy(honest)
        change(changed)
        yield Case(name=name, write=partial(_write, _dumped(changed)), is_refused=is_refused)
    for name, content in UBJSON.items():
        yield Case(name=f"UBJSON: {name}", write=partial(_write_bytes, b"{L\0\0\0\0\0\0\0\7learner{i\1a" + content))
    begin = '{"learner": {"a": '
    for name, text in {"lists": "[" * 1_000_000, "objects": '{"a":' * 1_000_000, "digits": "1" * 10_000_000}.items():
        yield Case(name=f"JSON: {name}", write=partial(_write, begin + text + "}}"))
    for name, honest_text in honest_texts().items():
        for seed in range(20):
            yield Case(
                name=f"{name}: mutant {seed}", write=partial(_write, mutant(honest_text, seed)), is_refused=False
            )


def _write(content: str, directory: Path) -> Path:
    return _write_bytes(content.encode(), directory)


def _write_bytes(content: bytes, directory: Path) -> Path:
    path = directory / "model.json"
    path.write_bytes(content)
    return path


def _warm_up() -> None:
    import onnxruntime  # noqa: F401
    import xgboost  # noqa: F401


FAMILY = Family(open=open_and_run, cases=_cases, warm_up=_warm_up)
