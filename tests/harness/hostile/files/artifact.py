"""Artifacts whose manifest, plan or feature spec is no file, never ends, or stands for too much."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rankline.workflows.plan.key_index import KeyIndex
from rankline.workflows.plan.plan import Column, ColumnSpec, TransformPlan
from rankline.workflows.schema.feature_spec import FILE_NAME, FeatureSpec
from rankline.workflows.storage.artifacts import MANIFEST, describe, load_manifest
from tests.harness.hostile.files import Case, Family
from tests.harness.hostile.files.workflow import NO_FILES

KIND = "thing"
PLAN = "plan"


def use(path: Path) -> None:
    """Load what the directory holds."""
    if (path / PLAN).is_dir():
        TransformPlan.load(path / PLAN)
    elif os.path.lexists(path / FILE_NAME):
        FeatureSpec.read(path)
    else:
        load_manifest(path, KIND)


def artifact(directory: Path) -> Path:
    made = directory / "artifact"
    made.mkdir()
    (made / "data").write_bytes(b"data")
    (made / MANIFEST).write_text(describe(made, KIND, {}, {}).to_json())
    return made


def with_file(name: str, write: Callable[[Path], object], directory: Path) -> Path:
    """An artifact in which something else is in the place of a file."""
    made = artifact(directory)
    (made / name).unlink(missing_ok=True)
    write(made / name)
    return made


def with_manifest(change: Callable[[dict[str, Any]], object], directory: Path) -> Path:
    made = artifact(directory)
    document = json.loads((made / MANIFEST).read_text())
    change(document)
    (made / MANIFEST).write_text(json.dumps(document))
    return made


def manifest_of(text: str) -> Callable[[Path], Path]:
    return partial(with_file, MANIFEST, lambda path: path.write_text(text))


MANIFESTS: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "a kind of two lines": lambda document: document.update(kind="thing\nrm"),
    "a version of two lines": lambda document: document.update(format_version="1\n2"),
    "a huge version": lambda document: document.update(format_version=10**4000),
    "a huge size": lambda document: document["files"]["data"].update(num_bytes=10**4000),
    "a field of two lines": lambda document: document.update({"a\nb": 1}),
    "a file of two lines": lambda document: document["files"].update({"a\nb": document["files"]["data"]}),
    "a file above": lambda document: document["files"].update({"../data": document["files"]["data"]}),
    "a long name": lambda document: document["files"].update({"x" * 5000: document["files"]["data"]}),
    "a long sum": lambda document: document["files"]["data"].update(sha256="x" * 1_000_000),
    "many files": lambda document: document["files"].update({str(i): document["files"]["data"] for i in range(99_999)}),
    "nested details": lambda document: document.update(details=nested(900, {})),
}


def nested(depth: int, value: Any) -> Any:
    for _ in range(depth):
        value = {"a": value}
    return value


def deep(depth: int) -> str:
    return "[" * depth + "]" * depth


# --- Plans


def saved_plan(directory: Path) -> Path:
    rows = np.array([0, 1, 2], np.int64)
    index = KeyIndex.build("user", pa.array([b"a", b"b"], pa.large_binary()))
    plan = TransformPlan(
        inputs=(ColumnSpec(name="user", dtype="object"),),
        indexes=(index,),
        columns=(Column(name="user", index=0, values=rows),),
        steps=(),
    )
    plan.save(directory / PLAN)
    return directory


def with_plan(change: Callable[[Any], object], directory: Path) -> Path:
    path = saved_plan(directory) / PLAN / "plan.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return directory


def with_array(kind: str, write: Callable[[Path], object], directory: Path) -> Path:
    """A plan in which something else is in the place of its strings, or of its numbers."""
    made = saved_plan(directory)
    path = next(path for path in sorted((made / PLAN).glob("*.arrow")) if holds_strings(path) == (kind == "strings"))
    path.unlink()
    write(path)
    return made


def holds_strings(path: Path) -> bool:
    with pa.OSFile(str(path)) as source:
        return bool(pa.types.is_large_binary(pa.ipc.open_file(source).schema.field(0).type))


def arrow(array: Callable[[], pa.Array], codec: str | None, path: Path) -> None:
    batch = pa.record_batch([array()], names=["array"])
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)


def zeros() -> pa.Array:
    """More than a gigabyte, of which nothing is in memory."""
    return pa.array(np.zeros(150_000_000, np.int64))


def text_of_zeros() -> pa.Array:
    text = pa.py_buffer(np.zeros(1_200_000_000, np.int8))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, pa.py_buffer(np.array([0, len(text)])), text])


def texts_of_nothing() -> pa.Array:
    offsets = pa.py_buffer(np.zeros(150_000_001, np.int64))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), 150_000_000, [None, offsets, pa.py_buffer(b"")])


def arrays() -> Iterator[tuple[str, Callable[[Path], object]]]:
    made: dict[str, Callable[[], pa.Array]] = {
        "nulls": lambda: pa.Array.from_buffers(pa.null(), (1 << 31) - 1, [None]),
        "nulls of numbers": lambda: pa.nulls(1000, pa.int64()),
        "one run": lambda: pa.RunEndEncodedArray.from_arrays(pa.array([(1 << 31) - 1]), pa.array([b"x"])),
        "a dictionary": lambda: pa.DictionaryArray.from_arrays(np.zeros(9, np.int32), pa.array([b"x" * 1_000_000])),
        "views": lambda: pa.array([b"x" * 1_000_000], pa.binary_view()),
        "lists": lambda: pa.array([[1]]),
    }
    for name, array in made.items():
        yield name, partial(arrow, array, None)
    for array, codec in product((zeros, text_of_zeros, texts_of_nothing), ("zstd", "lz4")):
        yield f"{array.__name__} in {codec}", partial(arrow, array, codec)
    yield "nothing", lambda path: path.touch()
    yield "a magic alone", lambda path: path.write_bytes(b"ARROW1\0\0")
    yield "a long message", lambda path: path.write_bytes(b"ARROW1\0\0\xff\xff\xff\xff\xff\xff\xff\x7f")


def with_changed_array(seed: int, directory: Path) -> Path:
    """Some bytes of the plan's Arrow files say something else."""
    made = saved_plan(directory)
    rng = np.random.default_rng(seed)
    for path in sorted((made / PLAN).glob("*.arrow")):
        content = bytearray(path.read_bytes())
        for place in rng.integers(8, len(content), 4):
            content[place] = rng.integers(0, 256)
        path.write_bytes(content)
    return made


# --- Feature specs


SPEC = """
feature_spec:
  user: {dtype: int64, cardinality: 3, embedding_dim: 4}
  liked: {dtype: float32}
source_spec: {}
channel_spec: {categorical: [user], label: [liked]}
metadata:
  more: MORE
"""


def laughs(levels: int, of: str = "[{0}]") -> str:
    """Lists of the one before, ten times each."""
    lines = ["&a0 [x, x]", *(f"&a{n} " + of.format(", ".join([f"*a{n - 1}"] * 10)) for n in range(1, levels))]
    return "[" + ", ".join(lines) + "]"


def specs() -> Iterator[tuple[str, str]]:
    for levels in (8, 9, 12, 30):
        yield f"lists of {levels} levels", SPEC.replace("MORE", laughs(levels))
        yield f"inputs of {levels} levels", SPEC.replace("more: MORE", f"inputs: {laughs(levels)}")
        yield (
            f"dimensions of {levels} levels",
            SPEC.replace("dtype: float32", f"dtype: float32, dimensions: {laughs(levels)}"),
        )
    merged = "\n".join(
        ["  m0: &m0 {a: 1, b: 2}", *(f"  m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 10)}]}}" for n in range(1, 9))]
    )
    yield "merged keys", SPEC.replace("  more: MORE", merged)
    yield "a list in itself", SPEC.replace("MORE", "&a [*a]")
    for digits in (5_000, 100_000, 900_000):
        for number in ("9" * digits, "0x" + "F" * digits, "0b" + "1" * digits, "1" + ":59" * (digits // 3)):
            yield (
                f"a cardinality of {digits} digits, {number[:3]}",
                SPEC.replace("cardinality: 3", f"cardinality: {number}"),
            )
    for number in (2**31, 10**12, -1, 0):
        yield f"a cardinality of {number}", SPEC.replace("cardinality: 3", f"cardinality: {number}")
        yield f"a width of {number}", SPEC.replace("embedding_dim: 4", f"embedding_dim: {number}")
        yield f"a length of {number}", SPEC.replace("dtype: float32", f"dtype: float32, dimensions: [{number}]")
    yield "a wide dtype", SPEC.replace("float32", "S2000000000")
    yield "many lists", SPEC.replace("MORE", "[" + "[]," * 300_000 + "]")
    yield "many lines", SPEC + "a:\n" * 300_000
    yield "deep lists", SPEC.replace("MORE", deep(400_000))
    yield "deep blocks", SPEC.replace("MORE", "\n    " + "- " * 400_000)


def cases() -> Iterator[Case]:
    for (name, write), file in product(NO_FILES.items(), (MANIFEST, "data", "beside")):
        is_refused = (name, file) != ("a directory", "beside")
        yield Case(name=f"{file}: {name}", write=partial(with_file, file, write), is_refused=is_refused)
    for name, change in MANIFESTS.items():
        yield Case(
            name=f"a manifest with {name}", write=partial(with_manifest, change), is_refused="details" not in name
        )
    for name, text in {
        "lists": "[" + "[]," * 2_000_000 + "[]]",
        "objects": "[" + "{}," * 2_000_000 + "{}]",
        "deep lists": deep(1_000_000),
        "digits": "9" * 8_000_000,
        "spaces": " " * 8_000_000,
        "nothing": "null",
    }.items():
        yield Case(name=f"a manifest of {name}", write=manifest_of(text))
    for name, write in NO_FILES.items():
        for file in (f"{PLAN}/plan.json", FILE_NAME):
            yield Case(name=f"{file}: {name}", write=partial(in_place, file, write))
        for kind in ("strings", "numbers"):
            yield Case(name=f"the {kind} of a plan: {name}", write=partial(with_array, kind, write))
    for (name, write), kind in product(arrays(), ("strings", "numbers")):
        yield Case(name=f"{kind} of a plan: {name}", write=partial(with_array, kind, write))
    for seed in range(40):
        yield Case(name=f"a changed array, {seed}", write=partial(with_changed_array, seed), is_refused=False)
    for name, change in PLANS.items():
        yield Case(name=f"a plan with {name}", write=partial(with_plan, change))
    for name, text in specs():
        yield Case(
            name=f"a spec with {name}",
            write=partial(in_place, FILE_NAME, partial(write_text, text)),
            is_refused=name != "lists of 8 levels",
        )


def write_text(text: str, path: Path) -> None:
    path.write_text(text)


def in_place(name: str, write: Callable[[Path], object], directory: Path) -> Path:
    path = directory / name
    if path.parent != directory:
        saved_plan(directory)
        path.unlink()
    write(path)
    return directory


PLANS: Mapping[str, Callable[[Any], object]] = {
    "a huge version": lambda document: document.update(format_version=10**4000),
    "a version of two lines": lambda document: document.update(format_version="3\n4"),
    "deep columns": lambda document: document.update(columns=nested(900, {})),
    "a large shape": lambda document: document["columns"][0]["values"].update(shape=[1 << 40]),
    "a shape of nothing": lambda document: document["columns"][0]["values"].update(shape=[0, 1 << 40]),
    "a dtype of objects": lambda document: document["columns"][0]["values"].update(dtype="O"),
    "a wide dtype": lambda document: document["columns"][0]["values"].update(dtype="S2000000000"),
    "another file": lambda document: document["columns"][0]["values"].update(array_file="../secret"),
    "a file of two lines": lambda document: document["columns"][0]["values"].update(array_file="a\nb"),
    "another kind": lambda document: document["columns"][0].update(kind="os\nsystem"),
    "no index": lambda document: document["columns"][0].update(index=10**18),
    "many columns": lambda document: document.update(columns=[{"kind": "Column"}] * 500_000),
}

FAMILY = Family(open=use, cases=cases, warm_up=lambda: load_manifest)
