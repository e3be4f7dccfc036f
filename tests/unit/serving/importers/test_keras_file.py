"""`.keras` files of both Keras: they score the same when they are served, and what names code is refused unread."""

import io
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rankline.serving.importers import keras_file, open_model
from rankline.serving.importers.keras_file import Model
from rankline.workflows.core.errors import ArtifactError
from tests.factories.importable_models import check_scores
from tests.harness.process.audit_hooks import record_side_effects

os.environ["KERAS_BACKEND"] = "tensorflow"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

X = np.array([0.5, -1.0, 2.0, 0.25])
IDS = np.array([0, 3, 2, 1])
LISTS = [[1, 2], [3], [4, 5, 6], [1]]


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request: pytest.FixtureRequest) -> Any:
    module = pytest.importorskip(request.param)
    module.utils.set_random_seed(0)
    return module


def id_input(keras: Any, name: str = "user") -> Any:
    return keras.Input((1,), name=name, dtype="int64")


def embedded(keras: Any, ids: Any) -> Any:
    return keras.layers.Flatten()(keras.layers.Embedding(12, 3)(ids))


def several_inputs(keras: Any) -> Any:
    user, price = id_input(keras), keras.Input((1,), name="price")
    hidden = keras.layers.Concatenate()([embedded(keras, user), price])
    hidden = keras.layers.Dense(4, "relu", kernel_regularizer="l2")(hidden)
    hidden = keras.layers.BatchNormalization()(keras.layers.Dropout(0.5)(hidden))
    return keras.Model([user, price], keras.layers.Dense(1, keras.layers.LeakyReLU())(hidden))


def operations_between(keras: Any) -> Any:
    import tensorflow as tf

    concat, sigmoid = (keras.ops.concatenate, keras.ops.sigmoid) if hasattr(keras, "ops") else (tf.concat, tf.sigmoid)
    user, price = id_input(keras), keras.Input((1,), name="price")
    hidden = concat([embedded(keras, user), price * 2.0], axis=1)
    return keras.Model([user, price], sigmoid(keras.layers.Dense(4)(hidden)[:, :2]))


def named_outputs(keras: Any) -> Any:
    user, price = id_input(keras), keras.Input((1,), name="price")
    outputs = {"click": keras.layers.Dense(1)(price), "buy": keras.layers.Dense(2)(embedded(keras, user))}
    return keras.Model({"user": user, "price": price}, outputs)


def one_layer_twice(keras: Any) -> Any:
    price, layer = keras.Input((1,), name="price"), keras.layers.Dense(1, name="d")
    return keras.Model(price, [layer(price), layer(layer(price))])


def inner_model(keras: Any) -> Any:
    price = keras.Input((1,), name="price")
    inner = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2), keras.layers.Softmax()])
    return keras.Model(price, inner(price))


def without_input(keras: Any) -> Any:
    model = keras.Sequential([keras.layers.Dense(3, "relu"), keras.layers.Dense(1)])
    model(X[:3, None].astype(np.float32))
    return model


def numbers_prepared(keras: Any) -> Any:
    price = keras.Input((1,), name="price")
    normal = keras.layers.Normalization()
    normal.adapt(X[:, None].astype(np.float32))
    bins = keras.layers.Discretization(bin_boundaries=[0.0, 1.0])
    hidden = keras.layers.Concatenate()([normal(price), embedded(keras, bins(price))])
    return keras.Model(price, keras.layers.Dense(1)(hidden))


def ids_prepared(keras: Any) -> Any:
    user = id_input(keras)
    lookup = keras.layers.IntegerLookup()
    lookup.adapt(IDS[:3, None])
    parts = [embedded(keras, layer(user)) for layer in (lookup, keras.layers.Hashing(5))]
    parts.append(keras.layers.CategoryEncoding(num_tokens=5, output_mode="one_hot")(user))
    return keras.Model(user, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))


def recurrent(keras: Any) -> Any:
    tags = keras.Input((None,), name="tags", dtype="int64")
    hidden = keras.layers.Embedding(12, 3)(tags)
    hidden = keras.layers.GRU(2)(keras.layers.LayerNormalization()(hidden))
    return keras.Model(tags, keras.layers.Dense(1)(hidden))


MODELS: dict[Callable[[Any], Any], dict[str, Any]] = {
    several_inputs: {"user": IDS, "price": X},
    operations_between: {"user": IDS, "price": X},
    named_outputs: {"user": IDS, "price": X},
    one_layer_twice: {"price": X},
    inner_model: {"price": X},
    without_input: {},
    numbers_prepared: {"price": X},
    ids_prepared: {"user": IDS},
    recurrent: {"tags": LISTS},
}


def saved(model: Any, directory: Path) -> Path:
    model.save(directory / "model.keras")
    return directory / "model.keras"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*complex.*", "ignore:.*mask.*")
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_keras_model_scores_the_same_when_served(make: Callable[[Any], Any], keras: Any, tmp_path: Path) -> None:
    model = make(keras)
    if make is ids_prepared and keras.__name__ == "tf_keras" and sys.version_info >= (3, 13):
        pytest.skip("tf_keras itself cannot load its file with a vocabulary: zipfile of Python 3.13.0 ends too soon")
    opened = open_model(saved(model, tmp_path))
    columns = MODELS[make] or {opened.inputs[0].name: X}
    made = check_scores(opened, columns, tmp_path)
    names = {named_outputs: ["buy", "click"], one_layer_twice: sorted(made)}.get(make)
    assert sorted(made) == (names or list(made))
    assert len(made) == (2 if names else 1)
    if make in (several_inputs, without_input):
        arrays = [np.asarray(column)[:, None].astype(np.float32) for column in columns.values()]
        (scores,) = made.values()
        expected = np.asarray(model(arrays if len(arrays) > 1 else arrays[0], training=False))
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)


Change = Callable[[dict[str, Any], dict[str, bytes]], None]


def changed(path: Path, change: Change, compression: int = zipfile.ZIP_STORED) -> Path:
    """The file with another description, or other members."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config, before = json.loads(members["config.json"]), members["config.json"]
    change(config, members)
    if members["config.json"] == before:
        members["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    keras = pytest.importorskip("keras")
    price = keras.Input((1,), name="price")
    return saved(keras.Model(price, keras.layers.Dense(1, name="dense")(price)), tmp_path)


def dense(config: dict[str, Any]) -> dict[str, Any]:
    return next(layer for layer in config["config"]["layers"] if layer["name"] == "dense")


def thing(module: Any, name: str, config: Any = None, registered: Any = None) -> dict[str, Any]:
    return {"module": module, "class_name": name, "config": config or {}, "registered_name": registered}


def function(module: Any, name: str, registered: Any = None) -> dict[str, Any]:
    return {"module": module, "class_name": "function", "config": name, "registered_name": registered or name}


HOSTILE: dict[str, tuple[Any, str]] = {
    "a process": (thing("subprocess", "Popen", {"args": ["touch", "marker"]}), "subprocess.Popen"),
    "a function": (function("os", "system"), "os.system"),
    "a function of Python": (function("builtins", "exec"), "builtins.exec"),
    "a download": (function("keras.utils", "get_file"), "keras.utils.get_file"),
    "a download in Keras 2": (function("tf_keras.utils", "get_file"), "tf_keras.utils.get_file"),
    "the loading of a model": (function("keras.models", "load_model"), "keras.models.load_model"),
    "what a module of Keras imports": (function("tf_keras.src.utils.data_utils", "urlretrieve"), "urlretrieve"),
    "a name with a point": (thing("keras.src.utils.io_utils", "os.system"), "os.system"),
    "one without a module": (thing(None, "os.system"), "'os.system'"),
    "code": (thing("keras.layers", "Lambda", {"function": "x"}), "a Lambda"),
    "code as a value": (thing("builtins", "__lambda__", {"value": ["4wEAAAA=", None, None]}), "a Lambda"),
    "code in a wrapper of cells": (
        thing("tf_keras.src.layers.rnn.cell_wrappers", "ResidualWrapper", {"residual_function": "x"}),
        "ResidualWrapper",
    ),
    "a program of TensorFlow": (thing("keras.layers", "TFSMLayer", {"filepath": "/tmp"}), "keras.layers.TFSMLayer"),
    "a pickle of PyTorch": (thing("keras.layers", "TorchModuleWrapper", {"module": "x"}), "TorchModuleWrapper"),
    "a registered class": (thing("mine", "Layer", {}, "mine>Layer"), "custom 'mine>Layer'"),
    "another registered name": (thing("keras.layers", "Dense", {}, "os.system"), "keras.layers.Dense"),
    "a function by another name": (function("keras.activations", "relu", "exec"), "keras.activations.relu"),
    "a type of tensors": ({**thing("os", "__typespec__", []), "spec_name": "system"}, "os.__typespec__"),
    "a file of words": (thing("keras.layers", "IntegerLookup", {"vocabulary": "/etc/passwd"}), "path '/etc/passwd'"),
    "a function of TensorFlow": (
        thing("tf_keras.src.layers.core.tf_op_layer", "TFOpLambda", {"function": "io.write_file"}),
        "the function tf.io.write_file",
    ),
    "an operation that is none": (thing("keras.src.ops.numpy", "np"), "keras.src.ops.numpy.np"),
    "a class that is no name": (thing("os", ["system"]), r"the class \['system'\]"),
}
PLACES: dict[str, Callable[[dict[str, Any], Any], None]] = {
    "activation": lambda config, value: dense(config)["config"].update(activation=value),
    "initializer": lambda config, value: dense(config)["config"].update(
        kernel_initializer={"class_name": "Constant", "module": "keras.initializers", "config": {"value": [value]}}
    ),
    "how it was built": lambda config, value: dense(config).update(build_config={"input_shape": [None, value]}),
    "how a layer was compiled": lambda config, value: dense(config).update(compile_config={"loss": value}),
    "a layer": lambda config, value: config["config"]["layers"].append({**value, "name": "x", "inbound_nodes": []}),
    "an argument": lambda config, value: dense(config)["inbound_nodes"].append([{"args": [], "kwargs": {"a": value}}]),
    "the whole": lambda config, value: config.update(value),
}
ACTS = ("subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "socket.", "urllib.", "pty.")


@pytest.fixture
def nothing_runs() -> Iterator[None]:
    """No process is started and nothing is asked of the network."""
    with record_side_effects() as acts:
        yield
    assert [act for act in acts if act.startswith(ACTS)] == []


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("what", HOSTILE)
def test_names_outside_keras_are_refused_wherever_they_are(what: str, file: Path) -> None:
    value, message = HOSTILE[what]
    content = file.read_bytes()
    for put in PLACES.values() if what == "a process" else (PLACES["activation"], PLACES["an argument"]):
        file.write_bytes(content)
        with pytest.raises(ArtifactError, match=f"contains .*{message}.*, expected only built-in Keras objects"):
            Model(changed(file, lambda config, _, put=put: put(config, value)))  # type: ignore[misc]


def test_lambda_saved_by_keras_is_refused(keras: Any, tmp_path: Path) -> None:
    price = keras.Input((1,), name="price")
    with pytest.raises(ArtifactError, match="contains a Lambda"):
        Model(saved(keras.Model(price, keras.layers.Lambda(lambda x: x * 2)(price)), tmp_path))


def test_custom_layer_is_refused_by_name(keras: Any, tmp_path: Path) -> None:
    class Twice(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, x: Any) -> Any:
            return 2 * x

    price = keras.Input((1,), name="price")
    path = saved(keras.Model(price, Twice()(price)), tmp_path)
    with pytest.raises(
        ArtifactError, match=r"Twice.*, expected only built-in Keras objects without side effects\. Build the model"
    ):
        Model(path)


def test_custom_loss_is_ignored(file: Path) -> None:
    value = HOSTILE["a process"][0]
    assert Model(changed(file, lambda config, _: config.update(compile_config={"loss": value}))).inputs


def external(config: dict[str, Any], members: dict[str, bytes], link: Any = None) -> None:
    content = io.BytesIO(members["model.weights.h5"])
    with h5py.File(content, "a") as weights:
        if link is None:
            weights.create_dataset("secret", (4,), "u1", external=[("/etc/hostname", 0, 4)])
        else:
            weights["secret"] = link
    members["model.weights.h5"] = content.getvalue()


def weights_of(members: dict[str, bytes], **options: Any) -> None:
    """More of them than the file has bytes."""
    content = io.BytesIO(members["model.weights.h5"])
    with h5py.File(content, "a") as weights:
        weights.create_dataset("more", (1 << 20,), "f4", **options)
    members["model.weights.h5"] = content.getvalue()


DAMAGED: dict[str, tuple[Change, str]] = {
    "no version": (lambda _, members: members.update({"metadata.json": b"{}"}), "cannot be read .*keras_version"),
    "no weights": (lambda _, members: members.pop("model.weights.h5") and None, "cannot be loaded by Keras"),
    "other weights": (lambda _, members: members.update({"model.weights.h5": b"none"}), "cannot be read"),
    "an absolute path": (
        lambda _, members: members.update({"/tmp/x": b""}),
        r"paths outside the archive: \['/tmp/x'\]",
    ),
    "weights of another file": (external, r"link to other files: \['/secret'\]"),
    "a link to another file": (
        lambda config, members: external(config, members, h5py.ExternalLink("/etc/x.h5", "/")),
        r"link to other files: \['secret'\]",
    ),
    "weights that are compressed": (
        lambda _, members: weights_of(members, compression="gzip"),
        "bytes of weights, but the weights file has only .* without compression",
    ),
    "more variables than weights": (
        lambda config, _: dense(config)["config"].update(units=10**9),
        "layers require at least .* bytes for variables",
    ),
    "no layers": (lambda config, _: config.pop("config") and None, "(cannot be loaded by Keras|does not say what)"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_keras_file_is_refused(what: str, file: Path) -> None:
    change, message = DAMAGED[what]
    with pytest.raises(ArtifactError, match=message):
        Model(changed(file, change))


@pytest.mark.parametrize(
    ("ratio", "name", "message"),
    [
        (100_000, "config.json", "config.json of 3 MiB, expected at most 1"),
        (1, "assets/x", "unpacks to 3 MiB, expected at most"),
    ],
)
def test_archive_that_unpacks_to_too_much_is_refused(
    ratio: int, name: str, message: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keras_file, "MAX_JSON_BYTES", 1 << 20)
    monkeypatch.setattr(keras_file, "MAX_RATIO", ratio)
    content = json.dumps([" " * (3 << 20)]).encode()
    with pytest.raises(ArtifactError, match=message):
        Model(changed(file, lambda config, members: members.update({name: content}), zipfile.ZIP_DEFLATED))


def test_truncated_keras_file_is_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(ArtifactError, match="not a model that can be served"):
        open_model(file)
