"""What the ONNX file of a repository may hold."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, parser

from rankline.serving.engines.onnxruntime.offline import Model
from rankline.serving.engines.onnxruntime.session import check_file
from rankline.workflows.core.errors import ArtifactError

CONSTANT = "y = Mul (a, w)"
FUNCTION = '<domain: "f", opset_import: ["" : 17]> f (x) => (z) { z = Neg (x) }'
BRANCHES = """c = Constant <value = bool {1}> ()
    y = If (c) <then_branch = t () => (float[1] r) { r = Constant <value = float[1] {1}> () },
                else_branch = e () => (float[N, 1] r) { r = Identity (a) }>"""


def model_of(body: str = "y = Neg (a)", functions: str = "") -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[N, 1] a) => (float[N, 1] y) {{ {body} }} {functions}'
    return parser.parse_model(text)


def put_elsewhere(tensor: TensorProto) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="model.onnx")


def with_initializer() -> onnx.ModelProto:
    model = model_of(CONSTANT)
    put_elsewhere(model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[1]))
    return model


def with_constant_in_a_branch() -> onnx.ModelProto:
    model = model_of(BRANCHES)
    branch = next(attribute.g for attribute in model.graph.node[1].attribute if attribute.name == "then_branch")
    put_elsewhere(branch.node[0].attribute[0].t)
    return model


def with_sparse_initializer() -> onnx.ModelProto:
    model = model_of(CONSTANT)
    put_elsewhere(model.graph.sparse_initializer.add().indices)
    return model


def with_training() -> onnx.ModelProto:
    model = model_of()
    model.training_info.add()
    return model


HONEST = model_of(BRANCHES).SerializeToString()
REFUSED = {
    "functions": (model_of(functions=FUNCTION).SerializeToString(), "the field 25 of a model"),
    "training": (with_training().SerializeToString(), "the field 20 of a model"),
    "a weight": (with_initializer().SerializeToString(), "weights in another file"),
    "a constant": (with_constant_in_a_branch().SerializeToString(), "weights in another file"),
    "a sparse weight": (with_sparse_initializer().SerializeToString(), "weights in another file"),
    "two graphs": (HONEST + HONEST, "the field 1 of a model, which is repeated or not written by Rankline"),
    "a graph behind it": (HONEST + b"\x3a\x00", "the field 7 of a model"),
    "a group": (b"\x0b", "wire type 3"),
    "a tag beyond 32 bits": (b"\xba\x80\x80\x80\x7f\x00", "the tag"),
    "half of it": (HONEST[:-5], "cut off"),
    "a length beyond it": (b"\x3a\xff\xff\xff\xff\x07", "cut off"),
    "a number without end": (b"\x08" + b"\xff" * 20, "too long"),
    "nothing": (b"", "empty"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_rankline_does_not_write_is_refused(what: str, tmp_path: Path) -> None:
    content, message = REFUSED[what]
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=message):
        Model(path)


def test_numbers_of_attributes_are_passed_over(tmp_path: Path) -> None:
    """Forests have millions of them, a field each."""
    model = model_of()
    attribute = model.graph.node[0].attribute.add(name="numbers", ints=[1, -1, 2**40], floats=[0.5, -1e30])
    attribute.strings.extend([b"BRANCH_LEQ", b"\x40" * 200])
    put_elsewhere(attribute.t)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match="weights in another file"):
        check_file(path)
    attribute.ClearField("t")
    path.write_bytes(model.SerializeToString())
    check_file(path)
