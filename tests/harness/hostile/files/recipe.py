"""Recipe files that take long to read, or ask for a model that no machine holds."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rankline.recipes.recipe_file import read_recipe
from rankline.training.models import check_memory
from rankline.workflows.schema.feature_spec import CATEGORICAL, CONTINUOUS, LABEL, Feature, FeatureSpec
from tests.harness.hostile.files import Case, Family
from tests.harness.hostile.files.artifact import deep, laughs
from tests.harness.hostile.files.workflow import NO_FILES

RECIPE = """
name: shop
data: {files: [sales.csv]}
columns:
  user: {type: int, role: id}
  price: {type: float, role: numeric}
labels:
  bought: {}
prepare: {hash_buckets: 0}
model:
  name: mlp
training: {epochs: 1}
rows: {}
"""
FREE_BYTES = 16 << 30


def use(path: Path) -> None:
    """Read a recipe, and train it on twenty columns: up to where memory would be taken."""
    recipe = read_recipe(path)
    assert recipe.prepare is not None
    spec = rows(recipe.prepare.hash_buckets + 1_000)
    check_memory(spec, recipe.train.model, copies=recipe.train.copies_of_weights, num_bytes=FREE_BYTES)


def rows(cardinality: int) -> FeatureSpec:
    ids = [Feature(name=f"c{i}", dtype="int64", cardinality=cardinality, embedding_dim=16) for i in range(20)]
    numbers = [Feature(name="price", dtype="float32"), Feature(name="bought", dtype="float32")]
    channels = {CATEGORICAL: tuple(feature.name for feature in ids), CONTINUOUS: ("price",), LABEL: ("bought",)}
    return FeatureSpec(features=(*ids, *numbers), channels=channels)


def written(text: str, directory: Path) -> Path:
    path = directory / "recipe.yaml"
    path.write_text(text)
    return path


def in_place(write: Any, directory: Path) -> Path:
    write(directory / "recipe.yaml")
    return directory / "recipe.yaml"


LARGE = (2_000_000_000, 2**31, 2**63, 10**18, 10**99)
CHOICES = {
    "mlp": ("embedding_dim", "embedding_dim_cap", "number_dim", "number_frequencies"),
    "dlrm": ("embedding_dim",),
    "dcnv2": ("cross_layers", "cross_rank"),
    "mmoe": ("experts",),
    "din": ("embedding_dim",),
    "dien": ("short_history", "gru_units"),
    "sim": ("num_searched", "gru_units"),
    "torch_mlp": ("embedding_dim",),
    "lightgbm": ("leaves", "list_ids"),
    "bayesian_fm": ("served_dim", "factors"),
    "ease": ("served_dim",),
}
LAYERS = {"mlp": "hidden", "dlrm": "top_mlp", "mmoe": "tower", "dien": "aux_hidden", "sim": "stage_one_hidden"}
WIDE = {
    "mlp": "embedding_dim: 65536\n  hidden: [65536, 65536]",
    "torch_mlp": "hidden: [65536, 65536]",
    "dlrm": "embedding_dim: 65536\n  bottom_mlp: [65536, 65536, 65536]\n  top_mlp: [65536, 65536]",
    "dcnv2": "embedding_dim: 16384",
    "deepfm": "hidden: [65536, 65536]",
    "mmoe": "experts: 1000\n  hidden: [4096, 4096]",
    "dien": "gru_units: 65536",
    "sim": "stage_one_hidden: [65536, 65536]",
    "din": "hidden: [65536, 65536]",
}


def sizes() -> Iterator[tuple[str, str]]:
    for number in LARGE:
        yield f"hash_buckets {number}", RECIPE.replace("hash_buckets: 0", f"hash_buckets: {number}")
        yield f"hash_buckets of a column {number}", RECIPE.replace("role: id", f"role: id, hash_buckets: {number}")
        yield f"max_length {number}", RECIPE.replace("role: id", f"role: multihot, max_length: {number}")
        yield f"threshold {number}", RECIPE.replace("role: id", f"role: id, frequency_threshold: {number}")
        yield f"batch_size {number}", RECIPE.replace("epochs: 1", f"batch_size: {number}")
        for model, names in CHOICES.items():
            for name in names:
                choice = RECIPE.replace("name: mlp", f"name: {model}\n  {name}: {number}")
                yield f"{model}.{name} {number}", choice
    for (model, name), width in product(LAYERS.items(), (100_000_000, 2**31, 10**30, 0, -1)):
        text = RECIPE.replace("name: mlp", f"name: {model}\n  {name}: [{width}, {width}]")
        yield f"{model}.{name} of {width}", text
    yield "ten thousand layers", RECIPE.replace("name: mlp", f"name: mlp\n  hidden: [{', '.join(['8'] * 10_000)}]")
    for model, choices in WIDE.items():
        yield (
            f"a wide {model}",
            RECIPE.replace("name: mlp", f"name: {model}\n  {choices}"),
        )
    yield (
        "buckets for each column",
        RECIPE.replace("hash_buckets: 0", "hash_buckets: 16000000").replace(
            "name: mlp", "name: mlp\n  embedding_dim: 64"
        ),
    )


def texts() -> Iterator[tuple[str, str]]:
    for levels in (8, 12, 30):
        yield f"files of {levels} levels", RECIPE.replace("[sales.csv]", laughs(levels))
        yield f"a name of {levels} levels", RECIPE.replace("shop", laughs(levels))
    parts = "{type: timestamp, role: timestamp, parts: &p [" + ", ".join(["year"] * 3_000) + "]}"
    again = "".join(f"  t{i}: {{type: timestamp, role: timestamp, parts: *p}}\n" for i in range(10_000))
    yield "columns that share parts", RECIPE.replace("labels:", f"  t: {parts}\n{again}labels:")
    yield "a list in itself", RECIPE.replace("[sales.csv]", "&a [*a]")
    for digits in (101, 5_000, 100_000, 900_000):
        for number in ("9" * digits, "0x" + "F" * digits, "0b" + "1" * digits, "1" + ":59" * (digits // 3)):
            yield f"{number[:3]} and {digits} digits", RECIPE.replace("epochs: 1", f"epochs: {number}")
            yield f"{number[:3]} and {digits} digits of a rate", RECIPE.replace("epochs: 1", f"learning_rate: {number}")
    yield "deep lists", RECIPE.replace("[sales.csv]", deep(400_000))
    yield "deep blocks", RECIPE.replace("[sales.csv]", "\n    " + "- " * 400_000)
    yield "deep names", RECIPE + "x: " + "{a: " * 100_000
    yield "many files", RECIPE.replace("sales.csv", "a," * 500_000)
    yield "many lines", RECIPE + "\n" * 200_000
    yield "a long line", RECIPE + "#" * 2_000_000
    yield "many anchors", RECIPE.replace("sales.csv", "".join(f"&a{i} a," for i in range(200_000)))
    yield "two documents", RECIPE + "---\n" + RECIPE
    yield "a tag", RECIPE.replace("shop", "!!python/object/apply:os.system [id]")
    yield "a long key", RECIPE + "x" * 1_000 + ": 1"
    yield "a key of two lines", RECIPE + '"a\\nb": 1'


def cases() -> Iterator[Case]:
    for name, write in NO_FILES.items():
        yield Case(name=f"recipe.yaml: {name}", write=partial(in_place, write))
    for name, text in sizes():
        yield Case(name=name, write=partial(written, text), is_refused=name != f"threshold {LARGE[0]}")
    for name, text in texts():
        yield Case(name=name, write=partial(written, text), is_refused=name != "1:5 and 101 digits of a rate")


FAMILY = Family(open=use, cases=cases, warm_up=partial(rows, 10))
