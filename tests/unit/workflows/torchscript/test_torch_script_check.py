"""TorchScript that only computes is loaded; nothing else of a file reaches PyTorch."""

import resource
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.schema.model_artifact import OUTPUTS
from rankline.workflows.torchscript.code import check_code
from rankline.workflows.torchscript.program import is_torch_script, load_torch_script
from tests.harness.hostile.files.torch_script import archive, artifacts, forward

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class Named(nn.Module):
    """Attributes whose names are no identifiers, strings, constants and nested types."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.table = {"a": [1, 2], 'b"\n\t\\': [3]}
        self.tables = [(1, torch.ones(2)), (2, torch.zeros(2).expand(3, 2)[0])]
        self.halves = nn.Parameter(torch.ones(2).half())

    def forward(self, x: Tensor) -> Tensor:
        """A message with quotes, a constant that is infinite and one that is complex."""
        if x.dim() != 2:
            raise ValueError(f"got {x.dim()} dimensions, 'expected' \"2\"")
        total = self.steps(x) + torch.tensor([1.0, float("inf")])
        for number, tensor in self.tables:
            total = total + number * tensor
        return total + len(self.table["a"]) + self.halves.float() + torch.tensor(1j).real


def attention() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(2, 1, 4, batch_first=True), 3)


def quantised() -> nn.Module:
    module = nn.Sequential(torch.ao.nn.quantized.Quantize(1.0, 0, torch.quint8), torch.ao.nn.quantized.Conv2d(2, 2, 1))
    return nn.Sequential(module, nn.Flatten(), torch.ao.nn.quantized.DeQuantize())


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "named": (Named, (3, 2)),
    "attention": (attention, (3, 4, 2)),
    "a quantised layer, which packs its weights when it is loaded": (quantised, (3, 2, 1, 1)),
}


@pytest.mark.parametrize("name", MODULES)
def test_program_that_only_computes_is_loaded(name: str, tmp_path: Path) -> None:
    make, shape = MODULES[name]
    module = torch.jit.script(make().eval())
    module.save(str(tmp_path / "model.pt"), _extra_files={OUTPUTS: '["a", "b"]'})
    loaded, outputs = load_torch_script(tmp_path / "model.pt", torch, remedy="Train again.")
    rows = torch.rand(shape)
    torch.testing.assert_close(loaded(rows), module(rows), equal_nan=True)
    assert outputs == ["a", "b"]
    assert not loaded.training


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_archive_of_another_tool_is_loaded(compression: int, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(archive(forward("return torch.neg(x)"), compression=compression))
    loaded, outputs = load_torch_script(path, torch, remedy="Train again.")
    assert loaded(torch.ones(1)).item() == -1
    assert outputs == []


def module_code(package: str, field: str) -> str:
    """Write the code of a model in a package, with a module of a name, called through a variable as PyTorch does."""
    return f"""class Net(Module):
  __parameters__ = []
  __buffers__ = []
  training : bool
  {field} : __torch__.{package}.part.Part
  def forward(self: __torch__.{package}.net.Net,
    x: Tensor) -> Tensor:
    {field}0 = self.{field}
    return ({field}0).forward(x, )
"""


@pytest.mark.parametrize(("package", "field"), [("ops", "part"), ("save", "part"), ("rpc_client.ops", "ops")])
def test_packages_and_modules_of_a_model_may_have_the_names_of_operators(package: str, field: str) -> None:
    check_code({f"code/__torch__/{package.replace('.', '/')}/net.py": module_code(package, field)})


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('__torch__.net.Kind.A.save("x")', "save"),
        ("__torch__.net.save", "save"),
        ('__torch__.torch.save.save("x")', "save"),
        ("ops", "ops"),
        ("(x if True else ops)", "ops"),
        ("ops.save.net(x)", "save"),
    ],
)
def test_operators_behind_such_names_are_refused(line: str, found: str) -> None:
    code = f"class Net(Module):\n  def forward(self: __torch__.net.Net,\n    x: Tensor) -> Tensor:\n    return {line}\n"
    with pytest.raises(ArtifactError, match=rf"contains \[.*'{found}'.*\]"):
        check_code({"code/__torch__/net.py": code})


REFUSED = {
    "code: from_file": r"contains \['from_file'\], which may have side effects\. Remove them from the",
    "code: method save": r"contains \['save'\]",
    "code: ops under another name": r"contains \['from_file', 'ops'\]",
    "code: continued line": r"code that torch\.jit\.save never writes",
    "code: getattr of pieces": r"contains \['getattr of _file', 'torch'\]",
    "code: getattr of a tensor by an escape": r"contains \['getattr of s.+141ve'\]",
    "code: FileStore": r"contains \['dist_c10d'\]",
    "code: sends": r"contains \['_c10d_functional'\]",
    "load: writes in a method": r"contains \['save'\]",
    "load: loop in a method": r"runs \['while'\] in __setstate__",
    "load: products": r"runs \['torch.matmul', 'torch.ones'\] in __setstate__",
    "cost: padded string": r"contains \['ljust'\]",
    "cost: parentheses": "code nested [0-9,]+ levels deep, expected at most 800",
    "cost: functions": "code nested [0-9,]+ levels deep",
    "cost: methods": "code nested [0-9,]+ levels deep",
    "cost: classes": "code nested [0-9,]+ levels deep",
    "cost: circle": "circular definitions",
    "cost: statements": "code of [0-9,]+ bytes, expected at most",
    "pickle: storage of a terabyte": r"claims 4,398,046,511,104 bytes for storage '0', but has 16",
    "pickle: storage read again and again": "storage '0' with a duplicate or invalid description",
    "pickle: tensor longer than its storage": "tensor reading item 1,048,575 of 4",
    "pickle: tensor that repeats": r"items backed by 4\. Save",
    "pickle: tuples": "attributes nested more than 200 levels deep",
    "pickle: a list of itself": "attributes nested more than 200 levels deep",
    "pickle: many lists": "attributes with more than 1,000,000 parts",
    "pickle: memo": "has gaps in its pickle memo",
    "pickle: type tag": "type is nested too deeply",
    "pickle: type tag of a class": r"contains \['dist_c10d'\]",
    "pickle: os.system": "contains 'os.system', which is not a TorchScript class",
    "pickle: FileStore": r"contains '__torch__\.torch\.classes\.dist_c10d\.FileStore', which may have side effects\.",
    "pickle: call of a number": "an object that is built in an unknown way",
    "pickle: unknown instruction": "instructions that TorchScript does not use",
    "pickle: no mark": "cannot be loaded as TorchScript",
    "zip: one before the other": "bytes before or after its zip archive",
    "zip: one in the comment of the other": "bytes before or after its zip archive",
    "zip: two ends of 64 bits, 0": "contradictory zip end records",
    "zip: two ends of 64 bits, 2": "bytes before or after its zip archive",
    "zip: one name in two cases": "records with duplicate names",
    "zip: records over each other": "records that overlap",
    "zip: bzip2": "unsupported compression",
    "zip: bomb in data/0": "tensors of 268,435,456 bytes",
    "zip: bomb in code/__torch__.py": "code of 268,435,456 bytes",
    "zip: outputs that are no names": "outputs.json that is not a list of names",
    "zip: of PyTorch 1.0": "saved by PyTorch 1.0 or older",
}


@pytest.fixture(scope="module")
def hostile() -> dict[str, bytes]:
    return artifacts("/nonexistent/effect")


@pytest.mark.parametrize("name", REFUSED)
def test_program_that_does_more_is_refused(name: str, hostile: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(hostile[name])
    with pytest.raises(ArtifactError, match=REFUSED[name]) as caught:
        load_torch_script(path, torch, remedy="Train again.")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_compiling_may_not_take_memory_without_end(hostile: dict[str, bytes], tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    (tmp_path / "model.pt").write_bytes(hostile["cost: doubled string"])
    with pytest.raises(ArtifactError, match="needs too much memory to load. Train again"):
        load_torch_script(tmp_path / "model.pt", torch, remedy="Train again.")
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a model", None])
def test_file_that_is_no_torchscript_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    if content is not None:
        path.write_bytes(content)
    assert not is_torch_script(path)
    with pytest.raises(ArtifactError, match=r"model.pt (cannot be loaded as TorchScript|has bytes)"):
        load_torch_script(path, torch, remedy="Train again.")


def test_records_for_debugging_are_left_out(tmp_path: Path) -> None:
    """They are pickles that PyTorch reads when something fails."""
    path = tmp_path / "model.pt"
    code = forward('ops.prim.RaiseException("wrong")\nreturn x')
    path.write_bytes(archive(code, **{"code____torch__.py.debug_pkl": b"\x80\x02" + b")" + b"\x85" * 1_000_000 + b"."}))
    loaded, _ = load_torch_script(path, torch, remedy="Train again.")
    with pytest.raises(Exception, match="wrong"):
        loaded(torch.ones(1))
