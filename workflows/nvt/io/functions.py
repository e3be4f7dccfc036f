"""Functions that a saved workflow holds: neither imported nor run because a file says so.

A `LambdaOp` with a lambda has its code in the file, one with a function has that function's name. A workflow may well
hold either where serving needs neither, as on a label: it loads, and what stands in the place of the function says what
it is when it is called.

An installed package names the functions that may be called, each by an entry point of the group `rankline.functions`,
as `is_liked = "shop.functions:is_liked"`. They become themselves in a workflow that refers to them by name.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, NoReturn

from rankline.workflows.core.errors import ArtifactError

GROUP = "rankline.functions"

# Class → its attributes that hold a function.
HELD_BY = {
    "merlin.dag.ops.subgraph.Subgraph": ("loop_until",),
    "merlin.dag.ops.udf.UDF": ("f",),
    "nvtabular.ops.bucketize.Bucketize": ("boundaries",),
    "nvtabular.ops.filter.Filter": ("f",),
    "nvtabular.ops.rename.Rename": ("f",),
}
_CALLED = {"UDF": "LambdaOp"}  # by those who write it


class CodeInFile:
    """What stands in the place of a function that was not loaded.

    Args:
        named: the function as MODULE:NAME; None where its code is in the file.
    """

    def __init__(self, named: str | None = None) -> None:
        self.__name__ = named or "<code in the file>"  # what NVTabular shows of the node
        self._named = named
        self._where = "A function"

    def belongs_to(self, operator: Any, columns: list[str]) -> None:
        kind = type(operator).__name__
        self._where = f"{_CALLED.get(kind, kind)} on {columns}"

    def __call__(self, *_arguments: Any) -> NoReturn:
        """Refuse."""
        if self._named:
            raise ArtifactError(
                f"{self._where} calls {self._named}, which no installed package names in the entry-point group "
                f"{GROUP}; name it there, or leave the column out."
            )
        if self._where.startswith("Bucketize"):
            raise ArtifactError(
                f"{self._where} keeps its boundaries in a function that was saved with its code, which is not run; "
                "rankline.workflows.nvt.operators.Bucketize keeps them as data."
            )
        raise ArtifactError(
            f"{self._where} was saved with its code, which is not run; move the function into a module of an installed "
            f"package and name it in the entry-point group {GROUP}, or leave the column out."
        )


def named_function(module: str, name: str) -> Callable[..., Any]:
    """The function that an installed package names so, else what refuses to be called."""
    for entry in entry_points(group=GROUP):
        if entry.value == f"{module}:{name}":
            return _loaded(entry)
    return CodeInFile(f"{module}:{name}")


def _loaded(entry: Any) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = entry.load()
    except Exception as error:  # the package's own
        raise ArtifactError(
            f"{entry.value}, which an installed package names in the entry-point group {GROUP}, cannot be imported "
            f"({type(error).__name__}: {error}). Mend or remove the package."
        ) from None
    if not callable(function):
        raise ArtifactError(f"{entry.value} in the entry-point group {GROUP} is no function. Mend the package.")
    return function


def say_whose_they_are(node: Any) -> None:
    """Tell the functions of a node's operator that were not loaded where they belong."""
    for name in {name for names in HELD_BY.values() for name in names}:
        function = vars(node.op).get(name)
        if isinstance(function, CodeInFile):
            schema = node.input_schema
            function.belongs_to(node.op, [] if schema is None else schema.column_names)
