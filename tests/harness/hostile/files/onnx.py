"""ONNX files that become much larger or slower than they are, or that have their weights elsewhere."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, parser

from rankline.serving.engines.onnxruntime.offline import Model
from rankline.serving.importers import open_model
from tests.factories.importable_models import both_scores
from tests.harness.hostile.files import Case, Family

HUGE = 5_000_000_000
SINK = "t = ReduceSum <keepdims = 0> (c) \n f = Cast <to = 1> (t) \n y = Add (a, f)"
CONSTANTS = {
    "ConstantOfShape": f"<int64[1] s = {{{HUGE}}}> {{ c = ConstantOfShape (s)",
    "ConstantOfShape, made by a product": "<int64[1] s = {70000}> { n = Mul (s, s) \n c = ConstantOfShape (n)",
    "ConstantOfShape, by numbers": "<float[1] s = {22.5}> { e = Exp (s) \n n = Cast <to = 7> (e) \n"
    "c = ConstantOfShape (n)",
    "Expand": f"<float[1] v = {{1}}, int64[1] s = {{{HUGE}}}> {{ c = Expand (v, s)",
    "Expand of rows": f"<int64[2] s = {{1, {HUGE}}}> {{ c = Expand (a, s)",
    "Tile": f"<float[1] v = {{1}}, int64[1] s = {{{HUGE}}}> {{ c = Tile (v, s)",
    "Range": f"<int64 z = {{0}}, int64 n = {{{HUGE}}}, int64 o = {{1}}> {{ c = Range (z, n, o)",
    "OneHot": f"<int64[1] i = {{1}}, int64 d = {{{HUGE}}}, float[2] v = {{0, 1}}> {{ c = OneHot (i, d, v)",
    "Pad": f"<float[1] v = {{1}}, int64[2] p = {{0, {HUGE}}}> {{ c = Pad (v, p)",
    "Resize": f"<float[1] v = {{1}}, int64[1] s = {{{HUGE}}}> {{ c = Resize (v, , , s)",
    "RandomNormal": "{ c = RandomNormal <shape = [70000, 70000]> ()",
    "RandomUniform": "{ c = RandomUniform <shape = [70000, 70000]> ()",
    "EyeLike": "<int64[2] s = {70000, 70000}> { z = ConstantOfShape (s) \n c = EyeLike (z)",
    "HannWindow": f"<int64 n = {{{HUGE}}}> {{ c = HannWindow (n)",
    "MatMul of the row and itself": "{ b = Flatten <axis = 0> (a) \n z = Transpose (b) \n s = Shape (b) \n"
    f"k = Constant <value_ints = [{HUGE}, 1]> () \n e = Expand (z, k) \n c = Mul (e, e)",
}
PRODUCTS = "\n".join(f"c{place + 1} = MatMul (c{place}, c0)" for place in range(40))
DOUBLED = "\n".join(f"c{place + 1} = Concat <axis = 0> (c{place}, c{place})" for place in range(40))
LOOP = """y = Loop (n, c, a) <body = b (int64 i, bool ci, float[N, 1] x) => (bool co, float[N, 1] z) {
    co = Identity (ci) \n z = Add (x, x) }>"""
SLOW = {
    "products that are folded": f"<int64[2] s = {{7000, 7000}}> {{ c0 = ConstantOfShape (s) \n {PRODUCTS} \n"
    + SINK.replace("(c)", "(c40)"),
    "constants that double": f"<float[1] c0 = {{1}}> {{ {DOUBLED} \n" + SINK.replace("(c)", "(c40)"),
    "a loop without end": f"<int64 n = {{9000000000000000000}}, bool c = {{1}}> {{ {LOOP}",
}


def text_model(body: str, functions: str = "", domains: str = "") -> onnx.ModelProto:
    """A model of one column."""
    head = f'<ir_version: 10, opset_import: ["" : 17{domains}]>'
    return parser.parse_model(f"{head} g (float[N, 1] a) => (float[N, 1] y) {body} }} {functions}")


def bomb(count: int, calls: int, *, is_circular: bool = False) -> onnx.ModelProto:
    """Functions that call the next one more than once."""
    functions = []
    for place in range(count):
        last = place == count - 1
        inner = "Add (x, x)" if last else f"f.f{place + 1} (x)"
        lines = "".join(f"t{call} = {inner} \n" for call in range(calls))
        if is_circular and last:
            lines = "t0 = f.f0 (x) \n"
        total = "Identity (t0)"
        functions.append(
            f'<domain: "f", opset_import: ["" : 17, "f" : 1]> f{place} (x) => (z) {{ {lines} z = {total} }}'
        )
    return text_model("{ y = f.f0 (a)", " ".join(functions), ', "f" : 1')


def nested(depth: int) -> onnx.ModelProto:
    """Branches in branches."""
    model = text_model("<bool c = {1}> { y = Identity (a)")
    inner = helper.make_graph([helper.make_node("Identity", ["a"], ["r"])], "i", [], [_value("r")])
    for _ in range(depth):
        node = helper.make_node("If", ["c"], ["r"], then_branch=inner, else_branch=inner)
        inner = helper.make_graph([node], "i", [], [_value("r")])
    model.graph.node.insert(0, helper.make_node("If", ["c"], ["unused"], then_branch=inner, else_branch=inner))
    return model


def _value(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 1])


def with_weight(**fields: Any) -> onnx.ModelProto:
    """With a constant of these fields."""
    model = text_model("{ y = Mul (a, w)")
    model.graph.initializer.append(TensorProto(name="w", data_type=TensorProto.FLOAT, **fields))
    return model


def elsewhere(place: str, location: str) -> onnx.ModelProto:
    """With a constant in another file, at some place of the model."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=location)
    constant = helper.make_node("Constant", [], ["w"])
    constant.attribute.append(AttributeProto(name="value", type=AttributeProto.TENSOR, t=weight))
    if place == "graph":
        model = text_model("{ y = Mul (a, w)")
        model.graph.initializer.append(weight)
    elif place == "constant":
        model = text_model("{ y = Mul (a, w)")
        model.graph.node.insert(0, constant)
    else:
        branch = helper.make_graph([helper.make_node("Identity", ["w"], ["r"])], "i", [], [_value("r")], [weight])
        node = helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
        model = text_model("{ y = f.f (a)", '<domain: "f", opset_import: ["" : 17]> f (x) => (z) {'
                           "c = Constant <value = bool {1}> () z = Identity (x) }", ', "f" : 1')  # fmt: skip
        model.functions[0].node[1].CopyFrom(node)
    return model


def _models() -> Iterator[tuple[str, onnx.ModelProto, bool]]:
    """Name, model, and whether it must be refused."""
    for count, calls in ((40, 2), (60, 2), (12, 9), (20, 3), (400, 2), (3000, 1)):
        yield f"{count} functions that call {calls} times", bomb(count, calls), True
    yield "functions in a circle", bomb(5, 2, is_circular=True), True
    yield "a function that calls itself", bomb(1, 1, is_circular=True), True
    twice = bomb(2, 1)
    twice.functions.append(twice.functions[1])
    yield "a function twice", twice, True
    for name, body in CONSTANTS.items():
        yield name, text_model(f"{body} \n {SINK}"), True
    for name, body in SLOW.items():
        yield name, text_model(body), True
    for depth in (5, 12):
        yield f"{depth} branches in branches", nested(depth), False
    for dims in ([HUGE], [2**31, 2**31], [2**62, 4], [-1], [2**63 - 1], [1] * 5000, [0, HUGE]):
        yield f"a weight of {dims[:2]}", with_weight(dims=dims, raw_data=b"\0" * 4), dims != [1] * 5000
    yield "a weight without values", with_weight(dims=[HUGE]), True
    yield "a weight with more values", with_weight(dims=[1], raw_data=b"\0" * 400), True
    for dims in ([HUGE], [2**31, 2**31], [-5]):
        sparse = text_model("{ y = MatMul (a, w)")
        values = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
        indices = helper.make_tensor("w_at", TensorProto.INT64, [1], [0])
        sparse.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, dims))
        yield f"a sparse weight of {dims}", sparse, True
    for place in ("graph", "constant", "branch of a function"):
        for location in ("/etc/hostname", "../secret", "missing", ""):
            yield f"weights at {location!r} of a {place}", elsewhere(place, location), True
    for version in (-1, 0, 2**40):
        model = text_model("{ y = Add (a, a)")
        model.ir_version = version
        yield f"IR version {version}", model, version != 0
        model = text_model("{ y = Add (a, a)")
        model.opset_import[0].version = version
        yield f"opset {version}", model, True


def _cases() -> Iterator[Case]:
    for name, model, is_refused in _models():
        content = model.SerializeToString()
        yield Case(name=name, write=partial(_write, content), is_refused=is_refused)
    honest = text_model("{ y = Add (a, a)").SerializeToString()
    tag = b"\xca\x01"  # functions
    for name, content in {
        "a field twice": honest + bomb(40, 2).SerializeToString(),
        "functions behind the graph": honest + tag + b"\x02\x0a\x00",
        "deep groups": b"\x0b" * 100_000,
        "deep graphs": b"\x3a\x80\x01" * 10_000,
        "a length beyond the end": b"\x3a\xff\xff\xff\xff\x07",
        "a number without end": b"\x08" + b"\xff" * 100,
        "random bytes": os.urandom(1 << 20),
    }.items():
        is_refused = name != "a field twice" and name != "functions behind the graph"
        yield Case(name=name, write=partial(_write, content), is_refused=is_refused or name == "a field twice")
    for name, model in {
        "functions": bomb(3, 1),
        "40 functions": bomb(40, 2),
        "training": _with_training(),
        **{f"weights of a {place}": elsewhere(place, "model.onnx") for place in ("graph", "constant")},
    }.items():
        yield Case(name=f"in a repository: {name}", write=partial(_write, model.SerializeToString(), repository=True))
    for kind, make in {"a FIFO": os.mkfifo, "a link to a device": partial(os.symlink, "/dev/zero")}.items():
        yield Case(name=kind, write=partial(_make, make))


def _with_training() -> onnx.ModelProto:
    model = text_model("{ y = Add (a, a)")
    model.training_info.add()
    return model


def _make(make: Any, directory: Path) -> Path:
    make(directory / "model.onnx")
    return directory / "model.onnx"


def _write(content: bytes, directory: Path, *, repository: bool = False) -> Path:
    path = directory / ("repository" if repository else "foreign") / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(content)
    return path


def _open(path: Path) -> None:
    if path.parent.name == "repository":
        Model(path)
    else:
        both_scores(open_model(path), {"a": np.array([0.5, 1.5])}, path.parent)


def _warm_up() -> None:
    import onnxruntime  # noqa: F401


FAMILY = Family(open=_open, cases=_cases, warm_up=_warm_up)
