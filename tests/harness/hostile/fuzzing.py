"""Damaged files of every kind that Rankline reads: each is read as if it were honest, or refused with one clear error.

`python -m tests.harness.hostile.fuzzing 100000` tries so many of each kind and says what it found; `make test` tries a
few.
"""

import faulthandler
import json
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rankline.recipes.recipe_file import read_recipe
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.workflows.core.errors import RanklineError
from rankline.workflows.plan import TransformPlan, tensor_call
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.storage.artifacts import Manifest, load_manifest, publish
from tests.factories.ensembles import NAME, lookup, publish_tiny
from tests.factories.specs import scalar_spec

_TIMEOUT_S = 30.0  # for one file; then it hangs
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 10**400, 0.5, float("nan"), float("inf"), 1e308),
    *("", "a", "../..", "/etc/passwd", "\0", "\ud800", "é" * 300, "1", "int64", "object"),
    *([], {}, [[]], [None], {"": 0}, {"a": {"a": 0}}, [0] * 1000),
)
ODD_BYTES = (
    b"\0",
    b"\xff",
    b"{",
    b"}",
    b"[" * 3000,
    b'"',
    b",",
    b"&a [*a]",
    b"!!python/object/apply:os.abort []",
    b"\n",
)
RECIPE = """
name: shop
data: {files: [rows.csv]}
columns:
  user: {role: id, frequency_threshold: 3}
  price: {type: float, role: numeric, scale: log}
  when: {type: timestamp, role: timestamp, format: "%d/%m/%Y", parts: [month]}
labels:
  bought: {classes: ["no", "yes"]}
time: when
group: user
rows: {split: time, valid_share: 0.1}
model: {name: dlrm, top_mlp: [16, 8], embedding_dim: 4}
training: {epochs: 2, learning_rate: 0.01}
serving: {engine: onnx, max_batch_size: 128}
"""


@dataclass(frozen=True, kw_only=True)
class Target:
    """An honest file, damaged in place, and what reads it; `parse` is None for a format without plain values."""

    file: Path
    read: Callable[[], Any]
    parse: Callable[[str], Any] | None = None
    render: Callable[[Any], str] = json.dumps


@contextmanager
def targets() -> Iterator[dict[str, Target]]:
    """Name → target, in a directory that goes with the block."""
    with tempfile.TemporaryDirectory(prefix="rankline-fuzz-") as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numbers that overflow
        yield dict(_targets(Path(name)))


def _targets(root: Path) -> Iterator[tuple[str, Target]]:
    artifact = root / "artifact"
    with publish(artifact, "thing", made_from={"source": "abc"}, details={"rows": 7}) as staging:
        (staging / "file").write_bytes(b"x")
    manifest = artifact / "manifest.json"
    yield "manifest", Target(file=manifest, read=lambda: _use_manifest(artifact), parse=json.loads)

    spec = root / "feature_spec.yaml"
    spec.write_text(scalar_spec([(3, 2), (5, 4)], 2).to_yaml(), encoding="utf-8")
    yield "spec", Target(file=spec, read=lambda: FeatureSpec.read(spec), parse=yaml.safe_load, render=yaml.safe_dump)

    recipe = root / "rankline.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    yield "recipe", Target(file=recipe, read=lambda: read_recipe(recipe), parse=yaml.safe_load, render=yaml.safe_dump)

    plan = root / "plan"
    lookup("x", "id", np.arange(5)).save(plan)
    for path in sorted(plan.iterdir()):
        parse = json.loads if path.suffix == ".json" else None
        yield f"plan {path.name}", Target(file=path, read=lambda: _use_plan(plan), parse=parse)

    ensemble = publish_tiny(root / NAME, 10)
    for path in (f"{NAME}/config.pbtxt", f"{NAME}/1/config.pbtxt", f"{ensemble.steps[0]}/config.pbtxt"):
        yield f"config {path}", Target(file=ensemble.path / path, read=lambda: _use_ensemble(ensemble.path))


def _use_manifest(artifact: Path) -> None:
    Manifest.read(artifact).to_json()
    load_manifest(artifact, "thing")


def _use_plan(directory: Path) -> None:
    call = tensor_call(TransformPlan.load(directory), (), 0)
    call({"x": np.arange(7).reshape(-1, 1)})


def _use_ensemble(path: Path) -> None:
    ensemble = ExportedEnsemble.load(path)
    _ = ensemble.config, ensemble.num_bytes


def damage(content: bytes, target: Target, rng: random.Random) -> bytes:
    """A file with something in it that is not as it was, more often a value than a byte."""
    if target.parse is not None and rng.random() < 0.7:
        document = target.parse(content.decode())
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            document = _changed(document, rng)
        try:
            return target.render(document).encode("utf-8", "surrogatepass")
        except (ValueError, RecursionError):
            return b""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at, length = rng.randrange(len(changed) + 1), rng.choice((1, 1, 2, 8, 100))
        match rng.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del changed[at : at + length]
            case 2:
                changed[at:at] = rng.choice(ODD_BYTES)
            case 3:
                changed[at:at] = changed[rng.randrange(len(changed) + 1) :][:length]
            case _:
                del changed[at:]
    return bytes(changed)


def _changed(document: Any, rng: random.Random) -> Any:
    """The same with one value, of any depth, another one, gone or twice."""
    if isinstance(document, dict | list) and document and rng.random() < 0.85:
        key = rng.choice(list(document)) if isinstance(document, dict) else rng.randrange(len(document))
        match rng.randrange(8):
            case 0:
                del document[key]
            case 1 if isinstance(document, list):
                document.insert(key, document[key])
            case 1:
                document[str(rng.choice(ODD))] = document[key]
            case 2 if isinstance(document, list):
                document[key] = document[rng.randrange(len(document))]
            case _:
                document[key] = _changed(document[key], rng)
        return document
    return rng.choice(ODD)


def fuzz(target: Target, count: int, rng: random.Random) -> Counter[str]:
    """Damage a file so often; how often it was read, and how often refused. Any other error is an AssertionError."""
    honest, found = target.file.read_bytes(), Counter[str]()
    target.read()
    try:
        for _ in range(count):
            content = damage(honest, target, rng)
            target.file.write_bytes(content)
            faulthandler.dump_traceback_later(_TIMEOUT_S, exit=True)
            try:
                target.read()
                found["read"] += 1
            except RanklineError as error:
                found["refused" if str(error).strip() else f"refused without a reason: {content!r}"] += 1
            except BaseException as error:
                raise AssertionError(f"{type(error).__name__}: {error} for {content[:3000]!r}") from error
            finally:
                faulthandler.cancel_dump_traceback_later()
    finally:
        target.file.write_bytes(honest)
    return found


def main(count: int) -> int:
    """Fuzz every target and print what came of it; the exit status."""
    failed = 0
    with targets() as found:
        for name, target in found.items():
            begin, rng = time.monotonic(), random.Random(name)
            try:
                result = dict(fuzz(target, count, rng))
            except AssertionError as error:
                result, failed = {"FAILED": str(error)}, 1
            print(f"{name}: {result} in {time.monotonic() - begin:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
