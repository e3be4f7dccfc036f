"""TorchScript in each form that people save: it scores the same when it is served, and programs are refused unrun."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional, Tuple  # noqa: UP035  (TorchScript reads these)

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rankline.serving.importers import open_model
from rankline.serving.importers.torch_script import Model
from rankline.workflows.core.errors import ArtifactError, ExportError
from tests.factories.importable_models import check_scores

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

X = np.array([0.5, -1.0, 2.0, 0.25])
IDS = np.array([0, 3, 2, 1])
LISTS = [[1, 2], [], [3], [4, 5, 6]]
CREATED = "RANKLINE_CREATED_FILE"


def scripted(module: nn.Module, directory: Path) -> Path:
    torch.jit.script(module).save(str(directory / "model.pt"))
    return directory / "model.pt"


class Flow(nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        if bool(a.sum() > 0):
            return a * 2
        for _ in range(a.shape[0]):
            a = a + 1
        return a


class ByName(nn.Module):
    def forward(self, inputs: Dict[str, Tensor]) -> Dict[str, Tensor]:  # noqa: UP006
        assert inputs["a"].dim() == 1
        return {"click": inputs["a"] * 2, "buy": inputs["user"].float()}


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(9, 2)

    def forward(self, tags__values: Tensor, tags__offsets: Tensor) -> Tensor:
        return self.bag(tags__values, tags__offsets[:-1])


class BagByName(Bag):
    def forward(self, inputs: Dict[str, Tensor]) -> Tensor:  # noqa: UP006
        return self.bag(inputs["tags__values"], inputs["tags__offsets"][:-1])


class Matrix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear, self.dropout = nn.BatchNorm1d(2), nn.Linear(2, 3), nn.Dropout(0.9)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.linear(self.norm(x)))


class Pair(NamedTuple):
    p: Tensor
    q: Tensor


class Two(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tuple[Tensor, Tensor]:  # noqa: UP006
        return a + b, a - b


class TwoNamed(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Pair:
        return Pair(a + b, a - b)


class Bytes(nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        return (a * 2).to(torch.float8_e5m2)


class Attention(nn.Module):
    """With columns as [rows], it would attend to all rows of the batch."""

    def forward(self, a: Tensor) -> Tensor:
        return torch.softmax(a, -1) * a


TAKEN: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], list[str]]] = {
    "control flow": (Flow, {"a": X}, ["score"]),
    "its other branch": (Flow, {"a": -np.abs(X)}, ["score"]),
    "a dictionary in and out": (ByName, {"a": X, "user": IDS}, ["buy", "click"]),
    "bags with offsets": (Bag, {"tags": LISTS}, ["score"]),
    "bags in a dictionary": (BagByName, {"tags": LISTS}, ["score"]),
    "columns of [rows, 1]": (Attention, {"a": X}, ["score"]),
    "one matrix": (Matrix, {"a": X, "b": X**2}, ["score"]),
    "float64": (lambda: Matrix().double(), {"a": X, "b": X**2}, ["score"]),
    "half precision": (lambda: Matrix().half(), {"a": X, "b": X**2}, ["score"]),
    "floats of a byte": (Bytes, {"a": X}, ["score"]),
    "a tuple": (Two, {"a": X, "b": X**2}, ["output_0", "output_1"]),
    "a named tuple": (TwoNamed, {"a": X, "b": X**2}, ["output_0", "output_1"]),
}


@pytest.mark.parametrize("name", TAKEN)
def test_scripted_module_scores_the_same_when_served(name: str, tmp_path: Path) -> None:
    make, columns, outputs = TAKEN[name]
    torch.manual_seed(0)
    module = make()
    made = check_scores(Model(scripted(module, tmp_path)), columns, tmp_path)
    assert sorted(made) == outputs
    if name == "columns of [rows, 1]":
        np.testing.assert_allclose(made["score"].ravel(), X, rtol=1e-6)
    if name == "float64":
        matrix = torch.from_numpy(np.stack([X, X**2], axis=1))
        np.testing.assert_allclose(made["score"], module.eval()(matrix).detach(), rtol=1e-6)


class Factors(nn.Module):
    """Takes ids [rows]; also runs with [rows, 1], where it normalizes along another dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(9, 4), nn.Embedding(9, 4)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (nn.functional.normalize(self.users(user)) * nn.functional.normalize(self.items(item))).sum(-1)


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.linear(a) + b


class Weighted(nn.Module):
    """Takes numbers [rows, 1]; as many rows as there are weights also run as [rows]."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (a * torch.tensor([1.0, 2.0, 3.0, 4.0]) + b).amax(-1, keepdim=True).expand(a.shape[0], 1)


class Dot(nn.Module):
    """Takes ids [rows, 1]; as [rows], each user is scored with the items of all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(9, 4), nn.Embedding(9, 4)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.users(user) @ self.items(item).transpose(-1, -2)).squeeze()


RANKS: list[tuple[Callable[[], nn.Module], dict[str, Any], int, bool]] = [
    (Factors, {"user": IDS, "item": IDS[::-1].copy()}, 1, True),
    (Dense, {"a": X.astype(np.float32), "b": X.astype(np.float32)}, 2, False),
    (Dense, {"a": X[:1].astype(np.float32), "b": X[:1].astype(np.float32)}, 2, False),
    (Weighted, {"a": X.astype(np.float32), "b": X.astype(np.float32)}, 2, False),
    (Dot, {"user": IDS, "item": IDS[::-1].copy()}, 2, False),
]


@pytest.mark.parametrize(("make", "columns", "rank", "is_ambiguous"), RANKS)
def test_columns_have_the_rank_that_fits_any_number_of_rows(
    make: Callable[[], nn.Module], columns: dict[str, Any], rank: int, is_ambiguous: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module = make().eval()
    model = Model(scripted(module, tmp_path))
    made = check_scores(model, columns, tmp_path)
    tensors = [torch.from_numpy(column) for column in columns.values()]
    expected = module(*(tensor if rank == 1 else tensor[:, None] for tensor in tensors)).detach().reshape(-1, 1)
    np.testing.assert_allclose(made["score"], expected, rtol=1e-5)
    assert bool(model.assumed()) == is_ambiguous
    assert all("so they are passed as [rows]. If training used [rows, 1]" in said for said in model.assumed())


class Crossed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding(x).sum(2).prod(1)


def test_matrix_of_ids_is_passed_as_integers(tmp_path: Path) -> None:
    module = Crossed()
    made = check_scores(Model(scripted(module, tmp_path)), {"a": IDS, "b": IDS + 4}, tmp_path)
    matrix = torch.from_numpy(np.stack([IDS, IDS + 4], axis=1))
    np.testing.assert_allclose(made["score"][:, 0], module(matrix).detach(), rtol=1e-5)


class Scalar(nn.Module):
    def forward(self, a: Tensor) -> float:
        return float(a.sum())


class Nested(nn.Module):
    def forward(self, a: Tensor) -> Tuple[Tensor, Tuple[Tensor, Tensor]]:  # noqa: UP006
        return a, (a, a)


class OneRow(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b], 1).view(1, -1) @ torch.ones(2, 1)


class Sparse(nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        return a.to_sparse()


@pytest.mark.parametrize(
    ("make", "columns", "message"),
    [
        (Scalar, {"a": X}, "'score': 'float'}, expected tensors"),
        (Nested, {"a": X}, "'output_1': 'tuple'}, expected tensors"),
        (lambda: Matrix().bfloat16(), {"a": X, "b": X}, "model failed on the sample: RuntimeError.*d?type"),
        (OneRow, {"a": X, "b": X}, "The model was traced with a single"),
        (Sparse, {"a": X}, "a TorchScript output cannot be converted to a dense array"),
    ],
)
def test_module_that_does_not_score_the_sample_is_refused(
    make: Callable[[], nn.Module], columns: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=message):
        check_scores(Model(scripted(make(), tmp_path)), columns, tmp_path)


class Masked(nn.Module):
    def forward(self, a: Tensor, mask: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        return a if mask is None else a * mask


class Counted(nn.Module):
    def forward(self, a: Tensor, k: int = 2) -> Tensor:
        return a * k


@pytest.mark.parametrize(("make", "kind"), [(Masked, r"Optional\[Tensor\]"), (Counted, "int")])
def test_arguments_that_are_no_tensors_are_named(make: Callable[[], nn.Module], kind: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=rf"forward\(\) in .* takes {{.*{kind}.*}}, expected tensors"):
        Model(scripted(make(), tmp_path))


class Saving(nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        torch.save(a, "RANKLINE_CREATED_FILE")
        return a


class SavingAtLoad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.zeros(1)

    @torch.jit.export
    def __getstate__(self) -> Tuple[Tensor, bool]:  # noqa: UP006
        return self.a, self.training

    @torch.jit.export
    def __setstate__(self, state: Tuple[Tensor, bool]) -> None:  # noqa: UP006
        self.a, self.training = state[0], state[1]
        torch.save(self.a, "RANKLINE_CREATED_FILE")

    def forward(self, a: Tensor) -> Tensor:
        return a


@pytest.mark.parametrize("make", [Saving, SavingAtLoad])
def test_script_that_writes_files_is_refused_unrun(
    make: Callable[[], nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More programs are in tests/harness/hostile."""
    monkeypatch.chdir(tmp_path)
    path = scripted(make(), tmp_path)
    (tmp_path / CREATED).unlink(missing_ok=True)
    with pytest.raises(ArtifactError, match=r"contains \['save'\], which may have side effects\. Remove them from the"):
        Model(path)
    assert not (tmp_path / CREATED).exists()
    if make is SavingAtLoad:
        torch.jit.load(str(path))
        assert (tmp_path / CREATED).exists(), "so the test proves something"


def test_quantised_weights_are_served(tmp_path: Path) -> None:
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this PyTorch has no kernels for them")
    with pytest.warns((DeprecationWarning, UserWarning)):
        module = torch.ao.quantization.quantize_dynamic(Matrix().eval(), {nn.Linear}, dtype=torch.qint8)
    check_scores(Model(scripted(module, tmp_path)), {"a": X, "b": X**2}, tmp_path)


def test_file_without_a_script_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.touch()
    with pytest.raises(ArtifactError, match=r"model.pt is empty\. Save the model again"):
        open_model(path)
    torch.save(Matrix().state_dict(), path)
    with pytest.raises(ArtifactError, match=r"Expected TorchScript: torch.jit.trace\(model, example\).save"):
        open_model(path)


def test_damaged_script_is_refused(tmp_path: Path) -> None:
    path, changed = scripted(Matrix(), tmp_path), tmp_path / "changed.pt"
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(changed, "w") as other:
        for name in archive.namelist():
            other.writestr(name, archive.read(name).replace(b"def forward", b"def def def"))
    with pytest.raises(ArtifactError, match="cannot be loaded as TorchScript"):
        open_model(changed)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ArtifactError, match="not a model that can be served"):
        open_model(path)
