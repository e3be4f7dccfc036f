"""SavedModels of both Keras and of plain modules: served as they score, and no programs are loaded."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankline.serving.engines.tensorflow.allowed_operations import check_loaded, check_served, is_allowed
from rankline.serving.importers import open_model
from rankline.serving.importers.saved_model import Model
from rankline.workflows.core.errors import ArtifactError
from tests.factories.importable_models import check_scores

os.environ["KERAS_BACKEND"] = "tensorflow"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

X = np.array([0.5, -1.0, 2.0, 0.25])
IDS = np.array([0, 3, 2, 1])


def spec(name: str = "a", dtype: str = "float32", shape: Any = (None, 1)) -> Any:
    import tensorflow as tf

    return tf.TensorSpec(shape, dtype, name)


def saved(path: Path, function: Callable[..., Any], *specs: Any, module: Any = None) -> Path:
    import tensorflow as tf

    module = module or tf.Module()
    module.score = tf.function(function, input_signature=list(specs) or [spec()], autograph=False)
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.score})
    return path


def proto_of(path: Path) -> Any:
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    return SavedModel.FromString((path / "saved_model.pb").read_bytes())


def kept_variables(path: Path) -> list[str]:
    import tensorflow as tf

    return [
        name for name, _ in tf.train.list_variables(str(path / "variables" / "variables")) if "VARIABLE_VALUE" in name
    ]


@pytest.mark.parametrize("release", ["keras", "tf_keras"])
def test_keras_model_is_served_without_its_optimizer(release: str, tmp_path: Path) -> None:
    keras = pytest.importorskip(release)
    user = keras.Input((1,), name="user", dtype="int64")
    looked_up = keras.layers.IntegerLookup(vocabulary=[1, 3])(user)
    hashed = keras.layers.Embedding(9, 2)(keras.layers.Hashing(5)(user))
    hidden = keras.layers.Concatenate()([keras.layers.Embedding(9, 4)(looked_up), hashed])
    hidden = keras.layers.GaussianNoise(0.1)(keras.layers.Flatten()(hidden))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dropout(0.5)(hidden))
    model = keras.Model(user, keras.layers.Dense(1, kernel_regularizer="l2")(hidden))
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.export(str(tmp_path / "exported"), **({"verbose": False} if release == "keras" else {}))
    (scores,) = check_scores(Model(tmp_path / "exported"), {"user": IDS}, tmp_path).values()
    np.testing.assert_allclose(scores, model(IDS[:, None], training=False), rtol=1e-5, atol=1e-6)
    assert len(kept_variables(tmp_path / "served" / "model.savedmodel")) == 2 + 4 + 2


@pytest.mark.parametrize(
    "operation",
    [
        "CudnnRNNBackpropV3",  # of a recurrent layer of Keras 2 that was trained
        *("StatelessRandomGetKeyCounter", "RngReadAndSkip", "StatefulUniform", "RandomUniform"),  # of dropout
        *("ResourceApplyAdamWithAmsgrad", "ResourceSparseApplyAdagradV2", "ResourceScatterAdd"),  # of optimizers
        *("TensorArrayWriteV3", "While", "Case", "LookupTableFindV2", "MutableHashTableOfTensorsV2", "Print"),
    ],
)
def test_operations_left_by_training_are_accepted(operation: str) -> None:
    import tensorflow  # noqa: F401  (it fills the registry)

    assert is_allowed(operation)


def test_saved_model_contains_only_scoring_variables(tmp_path: Path) -> None:
    import tensorflow as tf

    module = tf.Module()
    module.weight, module.momentum = tf.Variable([[2.0]]), tf.Variable(tf.zeros([1000]))
    path = saved(tmp_path / "saved", lambda a: {"y": a @ module.weight}, module=module)
    assert len(kept_variables(path)) == 2
    check_scores(Model(path), {"a": X}, tmp_path)
    assert len(kept_variables(tmp_path / "served" / "model.savedmodel")) == 1


def test_tables_from_memory_are_served(tmp_path: Path) -> None:
    import tensorflow as tf

    module = tf.Module()
    keys, values = tf.constant([3, 1], tf.int64), tf.constant([30.0, 10.0])
    module.table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1.0)
    path = saved(tmp_path / "saved", lambda user: {"y": module.table[user]}, spec("user", "int64"), module=module)
    made = check_scores(Model(path), {"user": IDS}, tmp_path)
    np.testing.assert_array_equal(made["y"][:, 0], [-1, 30, -1, 10])


def test_input_of_any_rank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="'a' of unknown rank.*input_signature of shape"):
        Model(saved(tmp_path / "saved", lambda a: {"y": a}, spec(shape=None)))


def hostile(marker: str) -> dict[str, Callable[[Any], Any]]:
    """Functions of a tensor whose operations write, read, run or end something."""
    import tensorflow as tf

    def after(operation: Any, a: Any) -> Any:
        with tf.control_dependencies([operation]):
            return tf.identity(a)

    return {
        "WriteFile": lambda a: after(tf.io.write_file(marker, "x"), a),
        "ReadFile": lambda a: a + tf.cast(tf.strings.length(tf.io.read_file("/etc/hostname")), tf.float32),
        "EagerPyFunc": lambda a: tf.reshape(tf.py_function(lambda x: x, [a], tf.float32), [-1, 1]),
        "PrintV2": lambda a: after(tf.raw_ops.PrintV2(input=marker, output_stream=f"file://{marker}"), a),
        "SaveV2": lambda a: after(
            tf.raw_ops.SaveV2(
                prefix=marker, tensor_names=tf.constant([marker]), shape_and_slices=[""], tensors=[tf.zeros([1])]
            ),
            a,
        ),
        "LMDBReader": lambda a: after(tf.compat.v1.raw_ops.LMDBReader(), a),
        "Abort": lambda a: after(tf.raw_ops.Abort(error_msg="the end"), a),
    }


@pytest.mark.parametrize(
    "operation", ["WriteFile", "ReadFile", "EagerPyFunc", "PrintV2", "SaveV2", "LMDBReader", "Abort"]
)
def test_operation_that_does_more_than_compute_is_refused_unrun(operation: str, tmp_path: Path) -> None:
    import tensorflow as tf

    function = hostile(str(tmp_path / "marker"))[operation]
    branch = tf.function(function, input_signature=[spec()], autograph=False)
    path = saved(tmp_path / "saved", lambda a: {"y": tf.cond(tf.reduce_sum(a) > 0, lambda: branch(a), lambda: a)})
    with pytest.raises(
        ArtifactError, match=rf"contains the operations \[.*'{operation}'.*\], which may have side effects"
    ):
        Model(path)
    assert not (tmp_path / "marker").exists()


def test_initialiser_that_writes_is_refused_unrun(tmp_path: Path) -> None:
    import tensorflow as tf
    from tensorflow.python.trackable.resource import CapturableResource

    marker = str(tmp_path / "marker")

    class Writing(CapturableResource):  # type: ignore[misc]
        def _create_resource(self) -> Any:
            return tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0).resource_handle

        def _initialize(self) -> Any:
            return tf.io.write_file(marker, "x")

    module = tf.Module()
    module.resource = Writing()
    path = saved(tmp_path / "saved", lambda a: {"y": a}, module=module)
    with pytest.raises(ArtifactError, match=r"\['WriteFile'\]"):
        Model(path)
    assert not (tmp_path / "marker").exists()
    tf.saved_model.load(str(path))
    assert (tmp_path / "marker").exists(), "so the test proves something"


def test_table_from_a_file_is_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    (tmp_path / "words").write_text("1\n2\n")
    module = tf.Module()
    line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    source = tf.lookup.TextFileInitializer(str(tmp_path / "words"), tf.int64, line, tf.int64, number)
    module.table = tf.lookup.StaticHashTable(source, -1)
    path = saved(tmp_path / "saved", lambda user: {"y": module.table[user]}, spec("user", "int64"), module=module)
    with pytest.raises(ArtifactError, match="InitializeTableFromTextFileV2"):
        Model(path)


def rewritten(path: Path, change: Callable[[Any], None]) -> Path:
    proto = proto_of(path)
    change(proto.meta_graphs[0])
    (path / "saved_model.pb").write_bytes(proto.SerializeToString())
    return path


def with_variable(path: Path) -> Path:
    """Such that there is something to save and restore."""
    import tensorflow as tf

    module = tf.Module()
    module.weight = tf.Variable([[2.0]])
    return saved(path, lambda a: {"y": a @ module.weight}, module=module)


@pytest.mark.parametrize("how", ["as its function", "as one of several", "as an object"])
def test_saver_functions_may_not_be_called_by_the_model(how: str, tmp_path: Path) -> None:
    def change(graph: Any) -> None:
        functions = graph.graph_def.library.function
        saver = next(f.signature.name for f in functions if f.signature.name.startswith("__inference__traced_save"))
        scoring = next(f for f in functions if not f.signature.name.startswith("__inference__traced_"))
        node = scoring.node_def.add(name="extra")
        if how == "as its function":
            node.op = "PartitionedCall"
            node.attr["f"].func.name = saver
        elif how == "as one of several":
            node.op = "Case"
            node.attr["branches"].list.func.add(name=saver)
        else:
            node.op = "NoOp"
            graph.object_graph_def.concrete_functions[saver].SetInParent()
            entry = graph.object_graph_def.nodes.add()
            entry.bare_concrete_function.concrete_function_name = saver

    path = with_variable(tmp_path / "saved")
    check_loaded(path)
    with pytest.raises(ArtifactError, match=r"\['(PartitionedCall|Case|MergeV2Checkpoints.*)'\]"):
        check_loaded(rewritten(path, change))


@pytest.mark.parametrize("middle", [1, 2, None])
def test_product_at_which_tensorflow_crashes_is_refused_before_it_runs(
    middle: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    module = tf.Module()
    module.weight = tf.Variable(tf.ones((4, 2)))

    def score(a: Any) -> dict[str, Any]:
        rows = tf.tile(a[:, :, None, None], (1, middle or tf.size(a) // tf.size(a), 3, 4))
        return {"y": tf.reduce_sum(rows @ module.weight, axis=(1, 2, 3))[:, None]}

    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    path = saved(tmp_path / "saved", score, module=module)
    if middle == 2:  # with two of them there, it is right
        assert Model(path).run({"a": np.ones((5, 1), np.float32)})["y"].ravel().tolist() == [48.0] * 5
        return
    with pytest.raises(ArtifactError, match=rf"shape \(None, {middle}, 3, 4\) by a matrix.*TF_ENABLE_ONEDNN_OPTS=0"):
        Model(path)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    check_loaded(path)


def test_saved_model_of_tensorflow_1_is_refused(tmp_path: Path) -> None:
    """Loading it runs what its graph calls the initialiser and the restoring of variables."""

    def change(graph: Any) -> None:
        graph.ClearField("object_graph_def")

    with pytest.raises(ArtifactError, match="TensorFlow 1 SavedModel"):
        Model(rewritten(with_variable(tmp_path / "saved"), change))
    twice = with_variable(tmp_path / "twice")
    proto = proto_of(twice)
    proto.meta_graphs.add().CopyFrom(proto.meta_graphs[0])
    (twice / "saved_model.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(ArtifactError, match="TensorFlow 1 SavedModel"):
        Model(twice)


def all_operations() -> list[Any]:
    from tensorflow.core.framework.op_def_pb2 import OpList
    from tensorflow.python.client import pywrap_tf_session

    return list(OpList.FromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())).op)


def test_operations_that_take_file_names_are_rejected() -> None:
    """Of all that this TensorFlow has, by the names of what they take; a new one is seen here first."""
    words = ("file", "path", "url", "memory_region", "address", "logdir", "directory")
    computing = {"CTCBeamSearchDecoder"}  # paths through a lattice
    taken = {
        operation.name
        for operation in all_operations()
        for entry in (*operation.input_arg, *operation.attr)
        if any(word in entry.name for word in words) and is_allowed(operation.name)
    }
    assert taken <= computing


def test_extra_files_are_allowed_in_imports_and_rejected_in_repositories(tmp_path: Path) -> None:
    path = with_variable(tmp_path / "saved")
    (path / "README.md").touch()
    check_loaded(path)
    with pytest.raises(ArtifactError, match=r"README\.md is a link or does not belong in a SavedModel"):
        check_served(path)


def test_nodes_that_nothing_leads_to_run_while_a_graph_is_loaded(tmp_path: Path) -> None:
    """TensorFlow runs what has no state to work out shapes."""
    import tensorflow as tf

    (tmp_path / "number").write_text("3")

    def change(graph: Any) -> None:
        with tf.Graph().as_default() as added:
            tf.zeros([tf.strings.to_number(tf.io.read_file(str(tmp_path / "number")), tf.int32)], name="theirs")
        graph.graph_def.node.extend(added.as_graph_def().node)

    path = rewritten(with_variable(tmp_path / "saved"), change)
    with tf.Graph().as_default() as loaded, tf.compat.v1.Session() as session:
        tf.compat.v1.saved_model.load(session, ["serve"], str(path))
        assert loaded.get_tensor_by_name("theirs:0").shape == [3], "so the test proves something"
    with pytest.raises(ArtifactError, match=r"runs the operations \['ReadFile'\]"):
        check_served(path)


def test_links_to_files_are_followed_as_caches_of_models_have_them(tmp_path: Path) -> None:
    path = with_variable(tmp_path / "saved")
    linked = tmp_path / "linked"
    (linked / "variables").mkdir(parents=True)
    for file in (file for file in path.rglob("*") if file.is_file()):
        (linked / file.relative_to(path)).symlink_to(file)
    check_scores(open_model(linked), {"a": X}, tmp_path)
    shutil.rmtree(path)
    with pytest.raises(ArtifactError):
        open_model(linked)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("saved_model.pb", lambda content: content[:100], "cannot be read|TensorFlow 1 SavedModel"),
        ("saved_model.pb", lambda content: content + b"\x08\x01", "duplicate fields"),
        ("saved_model.pb", lambda content: content + b"\xfa\x01\x00", "fields that the installed TensorFlow"),
        ("variables/variables.index", lambda _: b"", "variables.index cannot be read"),
        ("variables/variables.data-00000-of-00001", lambda _: b"", r"but the variable files contain only 0\. Save the"),
    ],
)
def test_damaged_saved_model_is_refused(
    name: str, damage: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    file = with_variable(tmp_path / "saved") / name
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ArtifactError, match=message):
        Model(tmp_path / "saved")
