"""LightGBM's text files whose numbers contradict each other: LightGBM allocates, reads and writes by them."""

import random
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

from rankline.serving.importers import open_model
from rankline.workflows.onnx.lightgbm_text import read_forest
from tests.harness.hostile.files import Case, Family
from tests.oracles.trees import both_scores

NUMBERS = ("-1", "0", "5", "257", "1000000000", "-2147483648", "9" * 30)
SPELLINGS = ("1e9", "0x10", "+5", "5\0", "1_0", "٣", "nan", "inf", "")
SIZES = ("num_class", "num_tree_per_iteration", "max_feature_idx", "label_index", "num_leaves", "num_cat")
LISTS = (
    *("split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child", "leaf_value"),
    *("leaf_weight", "leaf_count", "internal_value", "internal_weight", "internal_count", "shrinkage", "is_linear"),
)
OBJECTIVES = (
    *(f"{name} num_class:{count}" for name in ("multiclass", "multiclassova") for count in NUMBERS),
    *(f"binary sigmoid:{value}" for value in ("0", "-1", "nan", "inf", "1e999", "x")),
    *("multiclass", "regret", "multiclass num_class:3 num_class:5"),
)
CATEGORIES = "num_cat=1\ncat_boundaries=0 1000000000\ncat_threshold=1"
LINEAR = "is_linear=1\nleaf_const=0 0\nnum_features=1000000000 1\nleaf_features=9 9\nleaf_coeff=1 1"


def text(num_class: int = 1) -> str:
    """An honest model of two steps."""
    rng = np.random.default_rng(1)
    rows, labels = rng.normal(size=(60, 3)), rng.integers(0, max(num_class, 2), 60)
    options: dict[str, Any] = {"num_leaves": 4, "min_data_in_leaf": 5, "verbosity": -1, "num_threads": 1}
    options |= {"objective": "multiclass", "num_class": num_class} if num_class > 1 else {"objective": "binary"}
    return str(lightgbm.train(options, lightgbm.Dataset(rows, labels), 2).model_to_string())


def honest_texts() -> dict[str, str]:
    """By what they are."""
    return {"binary": text(), "3 classes": text(3)}


def with_sizes(changed: str) -> str:
    """The text with the lengths of its trees, which LightGBM goes by, as they are now."""
    head, *trees = re.split(r"(?=^Tree=)", changed.partition("end of trees")[0], flags=re.MULTILINE)
    sizes = " ".join(str(len(tree.encode())) for tree in trees)
    return re.sub(r"tree_sizes=.*", f"tree_sizes={sizes}", head) + "".join(trees) + "end of trees\n"


def chain(depth: int) -> str:
    """One tree in which each split has a leaf and the next split."""
    places, leaves = range(depth), range(depth + 1)
    fields = {
        "num_leaves": depth + 1,
        "num_cat": 0,
        "split_feature": " ".join("0" for _ in places),
        "threshold": " ".join(map(str, places)),
        "decision_type": " ".join("2" for _ in places),
        "left_child": " ".join(str(-1 - place) for place in places),
        "right_child": " ".join([*(str(place) for place in places[1:]), str(-1 - depth)]),
        "leaf_value": " ".join("0.5" for _ in leaves),
    }
    head = text().partition("Tree=0")[0]
    return with_sizes(head + "Tree=0\n" + "\n".join(f"{name}={value}" for name, value in fields.items()) + "\n\n\n")


def _texts() -> Iterator[tuple[str, str, bool]]:
    """Name, text, and whether it must be refused."""
    binary = text()
    for objective in OBJECTIVES:
        for name, honest in honest_texts().items():
            is_honest = name == "3 classes" and objective in ("multiclass",)
            changed = re.sub("objective=.*", f"objective={objective}", honest)
            is_plain = name == "binary" and re.fullmatch(r"multiclass(ova)?( num_class:1)?", objective)
            yield f"{name}: objective {objective}", changed, not (is_honest or is_plain)
    for name in (*SIZES, *LISTS):
        for value in NUMBERS:
            changed = re.sub(rf"^{name}=\S*", f"{name}={value}", binary, count=1, flags=re.MULTILINE)
            yield f"{name} {value}", with_sizes(changed), False
        yield f"no {name}", with_sizes(re.sub(rf"^{name}=.*\n", "", binary, flags=re.MULTILINE)), False
        twice = re.sub(rf"^({name}=)(.*)$", r"\1\2\n\g<1>1000000000", binary, flags=re.MULTILINE)
        yield f"{name} twice", with_sizes(twice), False
    yield "categories", with_sizes(binary.replace("num_cat=0", CATEGORIES, 1)), True
    bits = re.sub("decision_type=.*", "decision_type=257 257 257", binary, count=1)
    yield "categories in a byte that overflows", with_sizes(bits), True
    yield "linear trees", with_sizes(binary.replace("is_linear=0", LINEAR, 1)), True
    yield "sizes of trees beyond the end", re.sub(r"tree_sizes=\d+", "tree_sizes=1000000000", binary), True
    yield "negative sizes of trees", re.sub(r"tree_sizes=\d+", "tree_sizes=-5", binary), True
    yield "a very deep tree", chain(100_000), True
    yield "classes without trees", re.sub(r"(num_class|iteration)=1", r"\1=2000000000", binary), True
    yield "a damaged list of parameters", binary + "pandas_categorical:[[[" + "[" * 100_000, False


def _cases() -> Iterator[Case]:
    for name, content, is_refused in _texts():
        yield Case(name=name, write=partial(_write, content), is_refused=is_refused)
    for name, honest in honest_texts().items():
        for seed in range(30):
            yield Case(name=f"{name}: mutant {seed}", write=partial(_write, mutant(honest, seed)), is_refused=False)


def mutant(honest: str, seed: int) -> str:
    """One to three numbers replaced, in the lengths of the trees, too, or as LightGBM expects them."""
    rng = random.Random(seed)
    changed = honest
    for _ in range(rng.randint(1, 3)):
        match = rng.choice(list(re.finditer(r"-?\d+(\.\d+)?(e[+-]?\d+)?", changed.partition("end of trees")[0])))
        changed = changed[: match.start()] + rng.choice((*NUMBERS, *SPELLINGS)) + changed[match.end() :]
    return with_sizes(changed) if rng.random() < 0.8 else changed


def _write(content: str, directory: Path) -> Path:
    path = directory / "model.txt"
    path.write_text(content, encoding="utf-8")
    return path


def open_and_run(path: Path) -> None:
    """Load, score two rows by the framework and in the served layout."""
    model = open_model(path)
    (entry,) = model.inputs
    width = (entry.shape or (None, 1))[1] or 1
    columns = entry.features or [f"column {number}" for number in range(width)]
    both_scores(model, np.zeros((2, width), np.float32), path.parent, columns)


def _warm_up() -> None:
    import onnxruntime  # noqa: F401

    read_forest(text(), "it")


FAMILY = Family(open=open_and_run, cases=_cases, warm_up=_warm_up)
