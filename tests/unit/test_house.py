"""What holds for the whole house."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORBIDDEN = {
    "workflows": {"training", "serving", "rankline", "bench", "tensorflow", "torch"},
    "training": {"serving", "rankline", "bench"},
    "serving": {"training", "rankline", "bench"},
    "rankline": {"bench"},
}


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports, anywhere in it; of a package also what may be one of its modules."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("floor", FORBIDDEN)
def test_imports_only_go_down(floor: str) -> None:
    files = list((ROOT / floor).rglob("*.py"))
    upward = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imports(path)
        if name.split(".")[0] in FORBIDDEN[floor]
    ]
    assert files
    assert upward == []


@pytest.mark.parametrize("floor", [*FORBIDDEN, "bench"])
def test_no_imports_go_in_circles(floor: str) -> None:
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / floor).rglob("*.py")
    }
    # A floor hands on what its modules have, when it is asked: they need no more of it than that it is there.
    needs = {name: set(imports(path)) & files.keys() - {name, floor} for name, path in files.items()}
    assert len(list(TopologicalSorter(needs).static_order())) == len(files)  # else CycleError, which names them


_OF_A_SENDER = {"torch", "mlflow", "pandas", "pyarrow", "grpc", "tritonclient", "matplotlib"}
LIGHT = {
    "serving.benchmark.workers": _OF_A_SENDER,
    "serving.benchmark.http2": _OF_A_SENDER,
    "serving.client": {"pandas", "pydantic", "scipy"},
    "rankline.cli.main": {"mlflow", "pandas", "pydantic", "scipy"},
    "serving.plan": {"pandas"},
    "serving.server": {"pandas"},
    "workflows.datasets": {"nvtabular"},
    "workflows.prepared": {"nvtabular"},
    "training.join": {"horovod"},
    "training.models": {"torch"},
    "training.trainers": {"torch"},
    "training.loader.torch": set[str](),
}
"""Module → what it does not import, beside TensorFlow and NVTabular; nor do those before it: one process tries all."""


def test_light_modules_import_nothing_heavy() -> None:
    code = f"""
import sys
from importlib import import_module
for module, kept_out in {LIGHT}.items():
    import_module(module)
    for heavy in sorted(kept_out | {{"tensorflow", "nvtabular"}}):
        if heavy in sys.modules:
            print(module, "imports", heavy)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == []


@pytest.mark.parametrize(("library", "allowed"), [("mlflow", {"training/tracking", "rankline/tracking"})])
def test_a_library_has_one_door_per_floor(library: str, allowed: set[str]) -> None:
    importers = {
        path.parent.relative_to(ROOT).as_posix()
        if path.parent.name == "tracking"
        else path.relative_to(ROOT).as_posix()
        for floor in FORBIDDEN
        for path in (ROOT / floor).rglob("*.py")
        if any(name.split(".")[0] == library for name in imports(path))
    }
    assert importers == allowed
