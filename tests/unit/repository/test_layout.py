"""Where things are, and which way imports go; CONTRIBUTING.md says so in words."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = [Path(name) for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()]
PYTHON = [path for path in FILES if path.suffix == ".py"]
PARTS = ("workflows", "training", "serving")
FORBIDDEN = {
    "rankline.workflows": ("rankline.training", "rankline.serving", "tensorflow", "torch"),
    "rankline.training": ("rankline.serving",),
    "rankline.serving": ("rankline.training",),
    "rankline": ("bench",),
}
_MAX_ENTRIES = 14
_NOT_COUNTED = {"__init__.py", "py.typed"}


def module_of(path: Path) -> str:
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    return f"rankline.{name}" if path.parts[0] in PARTS else name


def imports(path: Path, *, with_types: bool = True) -> Iterator[str]:
    """Modules that a file imports, anywhere in it; of a package also what may be one of its modules."""
    waiting: list[ast.AST] = [ast.parse((ROOT / path).read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if with_types or not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


MODULES = {module_of(path): path for path in PYTHON if path.parts[0] in (*PARTS, "rankline", "bench")}


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_imports_only_go_down(layer: str) -> None:
    above = (*FORBIDDEN[layer], "bench")
    if layer != "rankline":
        above += tuple({f"rankline.{path.parts[1]}" for path in PYTHON if path.parts[0] == "rankline"} - {layer})
    upward = [
        f"{path} imports {name}"
        for module, path in MODULES.items()
        if is_in(module, layer)
        for name in imports(path)
        if any(is_in(name, other) for other in above)
    ]
    assert upward == []


def test_modules_do_not_import_in_circles() -> None:
    # A package hands on what its modules have, when it is asked: they need no more of it than that it is there.
    needs = {
        name: set(imports(path)) & MODULES.keys() - {name, *PARTS, "rankline", "bench"}
        for name, path in MODULES.items()
    }
    assert len(list(TopologicalSorter(needs).static_order())) == len(MODULES)  # else CycleError, which names them


def test_folders_do_not_import_each_other() -> None:
    folders = {
        name: ".".join(module_of(path.parent / "__init__.py").split(".")[: 3 if path.parts[0] in PARTS else 2])
        for name, path in MODULES.items()
    }
    needs = defaultdict[str, set[str]](set)
    for name, path in MODULES.items():
        used = set(imports(path, with_types=False)) & MODULES.keys()
        needs[folders[name]] |= {folders[other] for other in used} - {folders[name]}
    needs = {name: others - {"rankline"} for name, others in needs.items()}  # which hands on what others have
    assert set(TopologicalSorter(needs).static_order()) >= needs.keys()  # else CycleError, which names them


@pytest.mark.parametrize("part", PARTS)
def test_old_top_level_names_are_not_imported(part: str) -> None:
    """From the root of the repository, `workflows` and `rankline.workflows` would be two modules."""
    assert [path for path in PYTHON if any(is_in(name, part) for name in imports(path))] == []


def test_folders_are_small() -> None:
    entries = defaultdict[Path, set[str]](set)
    for path in FILES:
        for depth in range(1, len(path.parts)):
            entries[Path(*path.parts[:depth])].add(path.parts[depth])
    links = {path for path in FILES if (ROOT / path).is_symlink()}
    large = {
        str(folder): len(found)
        for folder, names in entries.items()
        if len(found := {name for name in names - _NOT_COUNTED if folder / name not in links}) > _MAX_ENTRIES
    }
    assert large == {}
    assert [
        str(path) for path in FILES if path.parts[0] in PARTS and len(path.parts) == 2 and path.name not in _NOT_COUNTED
    ] == []


_OF_A_SENDER = {"torch", "mlflow", "pandas", "pyarrow", "grpc", "tritonclient", "matplotlib"}
LIGHT = {
    "rankline.serving.loadtest.generator.worker_pool": _OF_A_SENDER,
    "rankline.serving.loadtest.generator.http2": _OF_A_SENDER,
    "rankline.serving.client": {"pandas", "pydantic", "scipy"},
    "rankline.cli.main": {"mlflow", "pandas", "pydantic", "scipy"},
    "rankline.workflows.plan": {"pandas"},
    "rankline.serving.server.embedded": {"pandas"},
    "rankline.workflows.data": {"nvtabular"},
    "rankline.workflows.preprocess.prepared_data": {"nvtabular"},
    "rankline.training.distributed.communicator": {"horovod"},
    "rankline.training.models": {"torch"},
    "rankline.training.trainers": {"torch"},
    "rankline.training.data.loader.torch": set[str](),
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


def test_mlflow_is_imported_where_runs_and_models_are_kept() -> None:
    importers = {
        str(path.parent)
        for path in MODULES.values()
        if path.parts[0] != "bench" and any(is_in(name, "mlflow") for name in imports(path))
    }
    assert importers == {"training/tracking", "rankline/api", "rankline/registry", "rankline/runs", "rankline/tuning"}
