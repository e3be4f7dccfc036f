"""`.keras` files whose description or weights become much larger than they are."""

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py

from rankline.serving.importers import open_model
from tests.harness.hostile.files import Case, Family

Members = dict[str, bytes]
LARGE = 1_000_000_000
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "units": ("Dense", {"units": LARGE}),
    "units without a bias": ("Dense", {"units": LARGE, "use_bias": False}),
    "units of zeros": ("Dense", {"units": LARGE, "kernel_initializer": "zeros"}),
    "units of an identity": ("Dense", {"units": 200_000, "kernel_initializer": "identity"}),
    "rows of a table": ("Embedding", {"input_dim": LARGE, "output_dim": 4}),
    "columns of a table": ("Embedding", {"input_dim": 4, "output_dim": LARGE}),
    "cells": ("GRU", {"units": 1_000_000}),
    "negative units": ("Dense", {"units": -1}),
    "units beyond int64": ("Dense", {"units": 2**70}),
    "units as text": ("Dense", {"units": "1e9"}),
    "a chain of two": ("Dense", {"units": 200_000}),
}


@cache
def honest(release: str) -> Members:
    """Members of a small model, made by another process: TensorFlow hangs in a fork of one that has used it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_made, release).result()


def _made(release: str) -> Members:
    module: Any = import_module("keras" if release == "3" else "tf_keras")
    layers = module.layers
    model = module.Sequential([module.Input((4,), name="x"), layers.Dense(2, name="a"), layers.Dense(3, name="b")])
    with TemporaryDirectory() as directory:
        path = Path(directory) / "model.keras"
        model.save(path)
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


def _with_layer(kind: str, options: dict[str, Any], members: Members) -> None:
    config = json.loads(members["config.json"])
    layers = [layer for layer in config["config"]["layers"] if layer["class_name"] == "Dense"]
    for layer in layers:
        layer["class_name"], layer["config"] = kind, {"name": layer["config"]["name"], **options}
        layer.pop("build_config", None)
    members["config.json"] = json.dumps(config).encode()


def _with_config(content: bytes, members: Members) -> None:
    members["config.json"] = content


def _with_dataset(members: Members, **options: Any) -> None:
    """The first weights in another shape."""
    content = io.BytesIO(members["model.weights.h5"])
    with h5py.File(content, "a") as weights:
        found: list[str] = []
        weights.visititems(lambda name, part: found.append(name) if isinstance(part, h5py.Dataset) else None)
        del weights[found[0]]
        weights.create_dataset(found[0], **options)
    members["model.weights.h5"] = content.getvalue()


def _with_members(count: int, members: Members) -> None:
    members |= {f"assets/{number}": b"" for number in range(count)}


def _with_many_links(members: Members) -> None:
    content = io.BytesIO(members["model.weights.h5"])
    with h5py.File(content, "a") as weights:
        group = weights
        for _ in range(30):  # each of two ways leads to the next: 2 ** 30 paths
            inner = group.create_group("x")
            group["y"] = inner
            group = inner
        group["back"] = weights["/"]
    members["model.weights.h5"] = content.getvalue()


def _changes() -> Iterator[tuple[str, Callable[[Members], None], bool]]:
    for name, (kind, options) in SIZES.items():
        yield name, partial(_with_layer, kind, options), True
    for name, text in {
        "deep lists": b"[" * 1_000_000,
        "deep objects": b'{"a":' * 1_000_000,
        "many digits": b"1" * 5_000_000,
        "a list": b"[]",
        "nothing": b"",
        "a long name": b'{"class_name": "' + b"x" * 1_000_000 + b'"}',
    }.items():
        yield f"description: {name}", partial(_with_config, text), True
    for name, options in {
        "a compressed bomb": {"shape": (LARGE,), "dtype": "f4", "compression": "gzip", "chunks": (1 << 20,)},
        "a shape without chunks": {"shape": (LARGE,), "dtype": "f4", "chunks": (1 << 10,)},
        "a shape without end": {"shape": (1 << 50,), "dtype": "f4", "chunks": (1 << 10,)},
        "two large dimensions": {"shape": (1 << 20, 1 << 20), "dtype": "f8", "chunks": (1, 1 << 10)},
        "large elements": {"shape": (1 << 20,), "dtype": "V4096", "chunks": (1 << 4,)},
    }.items():
        yield f"weights: {name}", partial(_with_dataset, **options), True
    yield "weights: many paths", _with_many_links, False
    yield "100,000 members", partial(_with_members, 100_000), True


def _circle(members: Members) -> None:
    """Two layers that take what the other gives."""
    config = json.loads(members["config.json"])

    def layer(name: str, source: str) -> dict[str, Any]:
        inbound = [[[source, 0, 0, {}]]]
        return {"class_name": "Dense", "name": name, "config": {"name": name, "units": 4}, "inbound_nodes": inbound}

    first = next(entry for entry in config["config"]["layers"] if entry["class_name"] == "InputLayer")
    given = {"class_name": "InputLayer", "name": "x", "config": first["config"] | {"name": "x"}, "inbound_nodes": []}
    layers = [given, layer("a", "b"), layer("b", "a")]
    config |= {"class_name": "Functional"}
    config["config"] = {"name": "m", "layers": layers, "input_layers": [["x", 0, 0]], "output_layers": [["b", 0, 0]]}
    members["config.json"] = json.dumps(config).encode()


def _cases() -> Iterator[Case]:
    for release in ("2", "3"):
        for name, change, is_refused in (*_changes(), ("layers in a circle", _circle, True)):
            yield Case(name=f"Keras {release}: {name}", write=partial(_write, release, change), is_refused=is_refused)
    bomb = partial(_with_config, json.dumps(["x" * (64 << 20)]).encode())
    yield Case(name="a compressed description", write=partial(_write, "3", bomb, compression=zipfile.ZIP_DEFLATED))


def _write(
    release: str, change: Callable[[Members], None], directory: Path, *, compression: int = zipfile.ZIP_STORED
) -> Path:
    members = dict(honest(release))
    change(members)
    with zipfile.ZipFile(directory / "model.keras", "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return directory / "model.keras"


def _warm_up() -> None:
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras  # noqa: F401
    import tf_keras  # noqa: F401


FAMILY = Family(open=open_model, cases=_cases, warm_up=_warm_up)
