"""ONNX of any converter: in the layout of served models it scores the same, and what cannot is refused by name."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pyarrow as pa
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from rankline.serving.export.config import ExportConfig
from rankline.serving.importers.export import export_foreign
from rankline.serving.importers.onnx_file import Model
from rankline.serving.server.in_process import open_ensemble
from rankline.workflows.core.errors import ArtifactError, ExportError
from tests.factories.importable_models import both_scores, check_scores

X = np.array([0.5, -1.0, 2.0, 0.25])
COLUMNS = {"a": X, "b": X[::-1].copy()}
LISTS = [[1, 2], [], [3], [4, 5, 6]]


def saved(model: onnx.ModelProto, directory: Path, name: str = "model.onnx") -> Path:
    (directory / name).write_bytes(model.SerializeToString())
    return directory / name


def text_model(body: str, directory: Path, ir: int = 8, opsets: str = '"" : 17') -> Path:
    return saved(parser.parse_model(f"<ir_version: {ir}, opset_import: [{opsets}]> {body}"), directory)


def doubled(
    directory: Path, kind: str = "float", shape: str = "[N, 1]", ir: int = 8, opset: int = 17, name: str = "a"
) -> Path:
    """Column times two."""
    body = f"g ({kind}{shape} a) => ({kind}{shape} y) {{ y = Add (a, a) }}"
    path = text_model(body, directory, ir, f'"" : {opset}')
    model = onnx.load(str(path))
    model.graph.input[0].name = name
    model.graph.node[0].input[:] = [name, name]
    return saved(model, directory)


@pytest.mark.parametrize("kind", ["float", "double", "float16", "int64", "int32"])
def test_number_types_are_fed_and_put_out_as_float32(kind: str, tmp_path: Path) -> None:
    column = np.array([3, 1, 2]) if kind.startswith("int") else X
    made = check_scores(Model(doubled(tmp_path, kind)), {"a": column}, tmp_path)
    np.testing.assert_allclose(made["y"][:, 0], 2 * column, rtol=1e-3)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18, 21])
def test_opsets_are_served(opset: int, tmp_path: Path) -> None:
    check_scores(Model(doubled(tmp_path, opset=opset, ir=3 if opset < 9 else 8)), {"a": X}, tmp_path)


@pytest.mark.parametrize("opset", [9, 11, 12, 17])
def test_lists_are_served_in_older_opsets(opset: int, tmp_path: Path) -> None:
    """Older ones than 11 have no cumulative sum, so those are converted."""
    body = """g (int64[M] tags__values, int64[K] tags__offsets, float[N, 1] a) => (float[N, 1] y, float[N, 1] z)
        <float[1] nothing = {0}> {
        total = ReduceSum <keepdims = 0> (tags__values)
        number = Cast <to = 1> (total)
        none = Mul (number, nothing)
        y = Add (a, none)
        z = Add (a, number)
    }"""
    model = Model(text_model(body, tmp_path, opsets=f'"" : {opset}'))
    made = check_scores(model, {"tags": LISTS, "a": X}, tmp_path)
    np.testing.assert_allclose(made["z"][:, 0], X + 21, rtol=1e-6)


def test_functions_are_inlined(tmp_path: Path) -> None:
    """As PyTorch's new exporter writes its operators, in a domain of its own."""
    body = """g (float[N, 1] a) => (float[N, 1] y) { y = pkg.own.twice (a) }
        <domain: "pkg.own", opset_import: ["" : 17]> twice (x) => (z) { z = Add (x, x) }"""
    model = Model(text_model(body, tmp_path, opsets='"" : 17, "pkg.own" : 1'))
    check_scores(model, {"a": X}, tmp_path)


def functions_that_call(count: int, last: str) -> str:
    """Each calls the next one twice."""
    bodies = [*(f"f.f{place + 1}" for place in range(count - 1)), last]
    return " ".join(
        f"""<domain: "f", opset_import: ["" : 17, "f" : 1]> f{place} (x) => (z) {{ y = {body} (x) z = {body} (y) }}"""
        for place, body in enumerate(bodies)
    )


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (functions_that_call(40, "Neg"), r"needs \d+e\+\d+ bytes after its functions are inlined"),
        (functions_that_call(3, "f.f0"), "a function 'f0' that calls itself"),
        (functions_that_call(1, "Neg") * 2, "two functions with the same name"),
    ],
    ids=["growth", "circle", "twice"],
)
def test_functions_that_grow_without_bound_are_refused(functions: str, message: str, tmp_path: Path) -> None:
    body = f"g (float[N, 1] a) => (float[N, 1] y) {{ y = f.f0 (a) }} {functions}"
    with pytest.raises(ArtifactError, match=message):
        Model(text_model(body, tmp_path, opsets='"" : 17, "f" : 1'))


@pytest.mark.parametrize("where", ["graph", "branch"])
def test_operators_of_other_domains_are_refused(where: str, tmp_path: Path) -> None:
    node = "y = their.own.Twice (a)"
    branches = f"""c = Constant <value = bool {{1}}> ()
        y = If (c) <then_branch = t () => (float[N, 1] y) {{ {node} }},
                    else_branch = e () => (float[N, 1] y) {{ {node} }}>
    """
    body = f"g (float[N, 1] a) => (float[N, 1] y) {{ {node if where == 'graph' else branches} }}"
    path = text_model(body, tmp_path, opsets='"" : 17, "their.own" : 1')
    with pytest.raises(ArtifactError, match=r"operators from the domains \['their.own'\]"):
        Model(path)


def test_branches_that_use_outer_tensors_are_served(tmp_path: Path) -> None:
    body = """g (float[N, 1] a) => (float[N, 1] y) <float[1] half = {0.5}> {
        c = Constant <value = bool {1}> ()
        y = If (c) <then_branch = t () => (float[N, 1] r) { r = Mul (a, half) },
                    else_branch = e () => (float[N, 1] r) { r = Identity (a) }>
    }"""
    made = check_scores(Model(text_model(body, tmp_path)), {"a": X}, tmp_path)
    np.testing.assert_allclose(made["y"][:, 0], X / 2)


def test_sparse_weights_are_served(tmp_path: Path) -> None:
    model = onnx.load(str(text_model("g (float[N, 2] x) => (float[N, 1] y) { y = MatMul (x, w) }", tmp_path)))
    values = numpy_helper.from_array(np.array([3], np.float32), "w")
    indices = numpy_helper.from_array(np.array([1], np.int64), "w_at")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 1]))
    made = check_scores(Model(saved(model, tmp_path)), COLUMNS, tmp_path)
    np.testing.assert_allclose(made["y"][:, 0], 3 * COLUMNS["b"])


def test_inputs_with_a_default_are_not_asked_for(tmp_path: Path) -> None:
    """Files before IR 4 name every weight as an input."""
    model = onnx.load(str(text_model("g (float[N, 1] a, float[1] w) => (float[N, 1] y) { y = Mul (a, w) }", tmp_path)))
    model.graph.initializer.append(numpy_helper.from_array(np.array([3], np.float32), "w"))
    model.ir_version = 3
    taken = Model(saved(model, tmp_path))
    assert [entry.name for entry in taken.inputs] == ["a"]
    np.testing.assert_allclose(check_scores(taken, {"a": X}, tmp_path)["y"][:, 0], 3 * X)


def with_weights_elsewhere(directory: Path, location: str) -> Path:
    model = onnx.load(str(text_model("g (float[N, 1] a) => (float[N, 1] y) { y = Mul (a, w) }", directory)))
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=location)
    model.graph.initializer.append(weight)
    return saved(model, directory)


@pytest.mark.parametrize("name", ["weights.bin", "deeper/weights.bin"])
def test_weights_in_a_file_beside_the_model_are_taken_along(name: str, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    (directory / name).parent.mkdir(parents=True)
    (directory / name).write_bytes(np.array([3], np.float32).tobytes())
    model = Model(with_weights_elsewhere(directory, name))
    (directory / name).unlink()
    np.testing.assert_allclose(check_scores(model, {"a": X}, tmp_path)["y"][:, 0], 3 * X)


@pytest.mark.parametrize("location", ["../secret", "deeper/../../secret", "/etc/hostname", "link"])
def test_weights_outside_the_directory_are_refused(location: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\0" * 4)
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(
        ArtifactError, match=f"weights in {location!r}, expected a relative path within the model's directory"
    ):
        Model(with_weights_elsewhere(directory, location))


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be read as ONNX"):
        Model(with_weights_elsewhere(tmp_path, "missing.bin"))


def test_fixed_batch_of_one_row_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        ArtifactError, match="requires exactly 1 rows for input 'a', but must accept any number .*dynamic batch axis"
    ):
        Model(doubled(tmp_path, shape="[1, 1]"))


def test_unsupported_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="'a' as BFLOAT16, expected FLOAT"):
        body = "g (bfloat16[N, 1] a) => (float[N, 1] y) { y = Cast <to = 1> (a) }"
        Model(text_model(body, tmp_path))
    with pytest.raises(ArtifactError, match="gives 'y' as BFLOAT16, expected FLOAT"):
        Model(text_model("g (float[N, 1] a) => (bfloat16[N, 1] y) { y = Cast <to = 16> (a) }", tmp_path))
    strings = Model(text_model("g (string[N, 1] a) => (string[N, 1] y) { y = Identity (a) }", tmp_path))
    with pytest.raises(ExportError, match="strings are not supported"):
        both_scores(strings, {"a": X}, tmp_path)


@pytest.mark.parametrize("name", ["a b", "/0", "/model/y", "größe", "a/b:0", "//1", "y_"])
def test_columns_of_any_name_are_served(name: str, tmp_path: Path) -> None:
    check_scores(Model(doubled(tmp_path, name=name)), {name: X}, tmp_path)


def test_column_named_like_an_inner_tensor_is_kept_apart(tmp_path: Path) -> None:
    body = """g (float[N, 1] h, float[N, 1] a) => (float[N, 1] y) { y = Sub (a, h) }"""
    made = check_scores(Model(text_model(body, tmp_path)), {"a": X, "h": X + 1}, tmp_path)
    np.testing.assert_allclose(made["y"][:, 0], -1)


def test_writing_is_deterministic(tmp_path: Path) -> None:
    contents = set()
    for _ in range(2):
        check_scores(Model(doubled(tmp_path)), {"a": X}, tmp_path)
        contents.add((tmp_path / "served" / "model.onnx").read_bytes())
    assert len(contents) == 1


def zip_map(words: str, kind: str = "float") -> str:
    return f"""g ({kind}[N, 2] x) => (seq(map(int64, {kind})) classes, int64[N] picked, float[N, 1] other) {{
        classes = ai.onnx.ml.ZipMap <{words}> (x)
        picked = ArgMax <axis = 1, keepdims = 0> (x)
        sum = ReduceSum <keepdims = 1> (x)
        number = Cast <to = 1> (sum)
        first = Constant <value = int64[1] {{0}}> ()
        part = Gather <axis = 1> (x, first)
        zero = Sub (part, part)
        float = Cast <to = 1> (zero)
        other = Add (float, number)
    }}"""


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [("classlabels_int64s = [4, 7]", ("4", "7")), ('classlabels_strings = ["no", "yes"]', ("no", "yes"))],
)
def test_maps_become_tensors_named_by_their_keys(
    words: str, expected: tuple[str, ...], kind: str, tmp_path: Path
) -> None:
    body = zip_map(words, kind)
    if "strings" in words:
        body = body.replace("map(int64", "map(string")
    model = Model(text_model(body, tmp_path, opsets='"" : 17, "ai.onnx.ml" : 1'))
    assert model.classes("classes") == expected
    made = check_scores(model, COLUMNS, tmp_path)
    assert sorted(made) == ["classes", "other"], "the number of the best class says nothing more"
    np.testing.assert_allclose(made["classes"], np.stack([*COLUMNS.values()], axis=1), rtol=1e-6)


def test_class_numbers_are_served_where_there_are_no_scores(tmp_path: Path) -> None:
    body = "g (float[N, 2] x) => (int64[N] label) { label = ArgMax <axis = 1, keepdims = 0> (x) }"
    made = check_scores(Model(text_model(body, tmp_path)), COLUMNS, tmp_path)
    np.testing.assert_array_equal(made["label"][:, 0], [0, 1, 0, 1])


def test_sequences_beside_scores_are_left_out(tmp_path: Path) -> None:
    body = """g (float[N, 1] a) => (float[N, 1] y, seq(float[N, 1]) all) {
        y = Add (a, a)
        all = SequenceConstruct (a, y)
    }"""
    assert list(check_scores(Model(text_model(body, tmp_path)), {"a": X}, tmp_path)) == ["y"]


@pytest.mark.parametrize("content", [b"", b"\x08", b"\xff" * 50, b"PK\3\4"])
def test_damaged_onnx_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ArtifactError, match="cannot be read as ONNX"):
        Model(tmp_path / "model.onnx")


ROWS = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
SIGNAL = ROWS @ [1, -1, 0.5]
LABELS = {"words": np.where(SIGNAL > 0, "yes", "no"), "numbers": np.digitize(SIGNAL, [-0.5, 0.5]), "amounts": SIGNAL}


def estimators() -> dict[str, tuple[Any, str, dict[str, Any]]]:
    from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    forest, scaled = RandomForestClassifier(3, random_state=0), make_pipeline(StandardScaler(), LogisticRegression())
    return {
        "a logistic regression": (LogisticRegression(), "words", {}),
        "one in float64": (LogisticRegression(), "numbers", {"X": ROWS[:1].astype(np.float64)}),
        "a forest of two classes": (forest, "words", {}),
        "a forest of three classes": (forest, "numbers", {}),
        "one without maps": (forest, "numbers", {"options": {"zipmap": False}}),
        "one of an old opset": (forest, "numbers", {"target_opset": {"": 9, "ai.onnx.ml": 1}}),
        "a pipeline": (scaled, "numbers", {}),
        "a regression": (GradientBoostingRegressor(n_estimators=5, random_state=0), "amounts", {}),
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", estimators())
def test_scikit_learn_models_are_served(name: str, tmp_path: Path) -> None:
    from skl2onnx import to_onnx

    estimator, labels, options = estimators()[name]
    estimator.fit(ROWS, LABELS[labels])
    path = saved(to_onnx(estimator, **{"X": ROWS[:1], **options}), tmp_path)
    sample = pa.Table.from_pandas(pd.DataFrame(ROWS, columns=["a", "b", "c"]))
    ensemble = export_foreign(path, sample, tmp_path / "repository" / "m", ExportConfig(), name="m")
    is_classifier = hasattr(estimator, "predict_proba")
    expected = estimator.predict_proba(ROWS) if is_classifier else estimator.predict(ROWS)
    with open_ensemble(ensemble) as client:
        np.testing.assert_allclose(client.predict(sample), expected, rtol=1e-5, atol=1e-6)
        (output,) = client.schema.outputs
    if is_classifier:
        words = tuple(map(str, estimator.classes_))
        assert re.fullmatch(r"(output_)?probabilit(y|ies)", output.name)
        assert Model(path).classes(output.name) == (() if "without" in name else words)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_keras_model_converted_by_tf2onnx_is_served(tmp_path: Path) -> None:
    import tensorflow as tf
    import tf2onnx
    import tf_keras

    user, price = tf_keras.Input((1,), name="user", dtype="int64"), tf_keras.Input((1,), name="price")
    hidden = tf_keras.layers.Flatten()(tf_keras.layers.Embedding(10, 4)(user))
    hidden = tf_keras.layers.Concatenate()([hidden, price])
    keras = tf_keras.Model([user, price], tf_keras.layers.Dense(1, "sigmoid", name="click")(hidden))
    specs = [tf.TensorSpec((None, 1), tf.int64, "user"), tf.TensorSpec((None, 1), tf.float32, "price")]
    function = tf.function(lambda user, price: {"click": keras([user, price])}, input_signature=specs)
    model, _ = tf2onnx.convert.from_function(function, specs, opset=15)
    ids = np.array([0, 3, 9, 1])
    made = check_scores(Model(saved(model, tmp_path)), {"user": ids, "price": X}, tmp_path)
    (scores,) = made.values()
    np.testing.assert_allclose(scores, keras([ids[:, None], X[:, None].astype(np.float32)]), rtol=1e-5)


def test_weights_of_a_constant_in_a_branch_outside_the_directory_are_refused(tmp_path: Path) -> None:
    body = """g (float[N, 1] a) => (float[N, 1] y) {
        c = Constant <value = bool {1}> ()
        y = If (c) <then_branch = t () => (float[1] r) { r = Constant <value = float[1] {1}> () },
                    else_branch = e () => (float[N, 1] r) { r = Identity (a) }>
    }"""
    model = onnx.load(str(text_model(body, tmp_path)))
    branch = next(attribute.g for attribute in model.graph.node[1].attribute if attribute.name == "then_branch")
    tensor = branch.node[0].attribute[0].t
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    with pytest.raises(ArtifactError, match=r"weights in '\.\./secret'"):
        Model(saved(model, tmp_path))
