"""Safe handling of functions in saved workflows. A reference in a file never suffices to import or run a function.

A `LambdaOp` with a lambda stores the code in the file; one with a named function stores its name. Such functions may be
in parts that serving does not need, such as a label. The workflow loads anyway, with a stand-in that raises an error
when called. A function may be called if an installed package names it by an entry point in the group
`rankline.functions`, such as `is_liked = "shop.functions:is_liked"`.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, NoReturn

from rankline.workflows.core.errors import ArtifactError

GROUP = "rankline.functions"

# Class → attributes that contain a function.
HELD_BY = {
    "merlin.dag.ops.subgraph.Subgraph": ("loop_until",),
    "merlin.dag.ops.udf.UDF": ("f",),
    "nvtabular.ops.bucketize.Bucketize": ("boundaries",),
    "nvtabular.ops.filter.Filter": ("f",),
    "nvtabular.ops.rename.Rename": ("f",),
}
_CALLED = {"UDF": "LambdaOp"}  # class → name that users know


class UnloadedFunction:
    """Stand-in for a function that was not loaded. It raises `ArtifactError` when called.

    Args:
        named: the function as MODULE:NAME; None if its code is in the file.
    """

    def __init__(self, named: str | None = None) -> None:
        self.__name__ = named or "<code in the file>"  # NVTabular displays it for the node
        self._named = named
        self._where = "A function"

    def belongs_to(self, operator: Any, columns: list[str]) -> None:
        kind = type(operator).__name__
        self._where = f"{_CALLED.get(kind, kind)} on {columns}"

    def __call__(self, *_arguments: Any) -> NoReturn:
        if self._named:
            raise ArtifactError(
                f"{self._where} calls {self._named}, which no installed package registers in the entry-point "
                f"group {GROUP}; register it there, or leave the column out."
            )
        if self._where.startswith("Bucketize"):
            raise ArtifactError(
                f"{self._where} stores its boundaries in a function that was saved as code, which Rankline does not "
                "run; use rankline.workflows.nvt.operators.Bucketize, which stores them as data."
            )
        raise ArtifactError(
            f"{self._where} was saved with its code, which Rankline does not run; move the function into an "
            f"installed package and register it in the entry-point group {GROUP}, or leave the column out."
        )


def named_function(module: str, name: str) -> Callable[..., Any]:
    for entry in entry_points(group=GROUP):
        if entry.value == f"{module}:{name}":
            return _loaded(entry)
    return UnloadedFunction(f"{module}:{name}")


def _loaded(entry: Any) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = entry.load()
    except Exception as error:  # raised by the package's own code
        raise ArtifactError(
            f"{entry.value}, registered by an installed package in the entry-point group {GROUP}, cannot be "
            f"imported ({type(error).__name__}: {error}). Fix or remove the package."
        ) from None
    if not callable(function):
        raise ArtifactError(f"{entry.value} in the entry-point group {GROUP} is not a function. Fix the package.")
    return function


def label_unloaded_functions(node: Any) -> None:
    """Tell the functions of a node that could not be loaded its operator and columns, for their error messages."""
    for name in {name for names in HELD_BY.values() for name in names}:
        function = vars(node.op).get(name)
        if isinstance(function, UnloadedFunction):
            schema = node.input_schema
            function.belongs_to(node.op, [] if schema is None else schema.column_names)
