"""What the files of the container stack say: compose files, the Dockerfile, and the list of files for the images.

`python -m tests.harness.containers.deployment` renews the last, in `.dockerignore`.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CONTAINER = ROOT / "serving" / "deploy"
VARIABLE = re.compile(r"\$\{(\w+):([-?])([^}]*)\}")
"""Its name, whether it has a default (-) or must be given (?), and the default or what to do."""
_CPP = (".cc", ".h")


def compose(name: str = "docker-compose.yml", **variables: str) -> dict[str, Any]:
    """A compose file with its variables filled in; one that must be given and is not is a `KeyError`."""

    def fill(match: "re.Match[str]") -> str:
        variable, kind, text = match.groups()
        if kind == "?" and variable not in variables:
            raise KeyError(f"{variable}: {text}")
        return variables.get(variable, text)

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [filled(entry) for entry in value]
        return VARIABLE.sub(fill, value) if isinstance(value, str) else value

    document: dict[str, Any] = filled(yaml.safe_load((ROOT / name).read_text(encoding="utf-8")))
    return document


def overridden(service: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """What a service becomes with a second compose file: lists are joined, all else, the command too, is replaced."""
    joined = {name: [*service.get(name, ()), *override[name]] for name in ("ports", "secrets") if name in override}
    return {**service, **override, **joined}


def dockerfile_stage(name: str) -> dict[str, Any]:
    """USER, WORKDIR and ENTRYPOINT of a stage, its variables, and all that it says."""
    text = (CONTAINER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    stage = re.split(r"^FROM .* AS ", text, flags=re.MULTILINE)
    body = next(part for part in stage if part.startswith(f"{name}\n"))
    return {
        "text": body,
        "USER": re.findall(r"^USER (.+)", body, re.MULTILINE)[-1],
        "WORKDIR": (re.findall(r"^WORKDIR (.+)", body, re.MULTILINE) or ["/"])[-1],
        "ENTRYPOINT": json.loads(re.findall(r"^ENTRYPOINT (.+)", body, re.MULTILINE)[-1]),
        "ENV": dict(
            pair.split("=", 1) for line in re.findall(r"^ENV (.+)", body, re.MULTILINE) for pair in line.split()
        ),
    }


def allowed_files() -> set[str]:
    """The allow-list of `.dockerignore`: one file in each line that begins with `!`."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return {line.removeprefix("!") for line in lines if line.startswith("!")}


def needed_files() -> tuple[set[str], set[str]]:
    """Files of the project that the images need, and the other packages that those import."""
    never_called = {"workflows/nvt/io/workflow.py"}  # imported by functions alone
    files, modules = set(never_called), set[str]()
    waiting = ["serving/deploy/bench.py", "rankline/__init__.py"]
    while waiting:
        name = waiting.pop()
        if name in files or not (ROOT / name).is_file():
            continue
        files.add(name)
        waiting += [f"{parent}/__init__.py" for parent in map(str, Path(name).parents) if parent != "."]
        for module in _modules_in(ROOT / name):
            if module.split(".")[0] == "rankline":
                path = re.sub(r"^rankline\.(?=(workflows|training|serving)\b)", "", module).replace(".", "/")
                waiting += [f"{path}.py", f"{path}/__init__.py"]
            else:
                modules.add(module.split(".")[0])
    sources = [path for path in ROOT.glob("*/native/**/*") if path.suffix in _CPP]
    scripts = [
        ROOT / "workflows/native/build.py",
        CONTAINER / "sbom.py",
        CONTAINER / "track.py",
        *(CONTAINER / "bin").iterdir(),
    ]
    others = [*scripts, *CONTAINER.glob("requirements/*.txt")]
    files |= {path.relative_to(ROOT).as_posix() for path in (*sources, *others)}
    return files - never_called, modules - set(sys.stdlib_module_names)


def _modules_in(path: Path) -> Iterator[str]:
    """Imports that are carried out: those under `if TYPE_CHECKING` are not."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)  # `from package import module`
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            waiting += ast.iter_child_nodes(node)


def write_allow_list() -> None:
    """Renew `.dockerignore`; its comments stay."""
    path = ROOT / ".dockerignore"
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("!")]
    files, _ = needed_files()
    path.write_text("\n".join([*kept, *(f"!{name}" for name in sorted(files))]) + "\n", encoding="utf-8")


def schema_faults(schema: str, *files: Path) -> str:
    """What check-jsonschema says of files that do not follow a schema of its own; in this process, which is quick."""
    check = pytest.importorskip("check_jsonschema.cli", reason="pip install check-jsonschema")
    from click.testing import CliRunner

    done = CliRunner().invoke(check.main, ["--builtin-schema", schema, *map(str, files)])
    return done.output if done.exit_code else ""


if __name__ == "__main__":
    write_allow_list()
