"""A strict check of the code in a TorchScript file, which accepts only what PyTorch's printer writes.

PyTorch's parser accepts more than its printer writes: comments and line continuations inside dotted names, strings in
several parts and with escapes, modules under other names. All of these are rejected, so that every name that the code
uses appears in it as a word.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from rankline.workflows.core.errors import ArtifactError

LIBRARIES = frozenset({"aten", "prim", "prims", "quantized", "mkldnn", "mkldnn_prepacked", "onednn", "sparse"})
"""Operator libraries that only compute. Others communicate, or reinterpret memory."""
_REFUSED = re.compile(
    r"save|from_file|load_tensor|data_ptr|rpc_\w+|\w*PythonOp|_sparse_\w+_unsafe|[lr]just|zfill|expandtabs"
)
"""Operators that access files, memory or other processes, and string padding, which runs during compilation."""
_PRIM = re.compile(r"[a-z_]\w*|RaiseException|NumToTensor|Print|EnumName|EnumValue|ModuleContainerIndex|IfThenElse")
"""Allowed operators of `prim`; others with a capital letter need a graph, which code cannot provide."""
_MAX_DEPTH = 800
"""Maximum nesting of function calls and their expressions. PyTorch's compiler handles twice this depth with a stack of
4 MiB; the default stack has 8 MiB.
"""
_TOKEN = re.compile(
    r"""(?P<space>\ +)
    |(?P<line>\n[\ ]*)
    |(?P<word>[A-Za-z_][A-Za-z_0-9]*)
    |(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?j?(?![A-Za-z_0-9]))
    |(?P<string>"(?:[^"\\\x00-\x1f\x7f]|\\[ -~])*"(?!"))
    |(?P<open>[([{])
    |(?P<close>[)\]}])
    |(?P<sign>[.,:=+\-*/%<>!&|^~@])""",
    re.VERBOSE,
)
_LOADING = re.compile(r"def __setstate__\(")
_METHOD = re.compile(r"^  def (\w+)\(", re.MULTILINE)
_CLASS = re.compile(r"^(?=class |def )", re.MULTILINE)
_DEFINED = re.compile(r"(?:class|def) (\w+)")
_CALLED = re.compile(r"\.(\w+)\(")
_COMPUTED = re.compile(
    r"\b(?:for|while|fork)\b|(?<![\w.])torch\.(?!(?:eq|ne|lt|le|gt|ge|len|dim|size|append|format|__\w+__)\b)\w+|__torch__\.[\w.]+\("
)


def check_code(sources: Mapping[str, str]) -> None:
    """Reject TorchScript code that does anything but compute or would overflow the PyTorch compiler's stack. `sources`
    maps record names to code.

    Raises:
        ArtifactError: the code is rejected; the message names the reason.
    """
    found, loading = set[str](), set[str]()
    needs: dict[str, set[str]] = {}
    depths: dict[str, int] = {}
    for record, source in sources.items():
        module = record.removeprefix("code/").removesuffix(".py").replace("/", ".")
        for definition in filter(None, _CLASS.split(source)):
            scan = _Scan(definition, record)
            found |= scan.found
            name = _DEFINED.match(definition)
            known = f"{module}.{name[1]}" if name else module
            needs[known] = needs.get(known, set()) | scan.paths - {known}
            depths[known] = depths.get(known, 0) + scan.depth
            if _LOADING.search(definition):
                loading |= set(_done_at_load(definition))
    if found:
        raise ArtifactError(
            f"contains {sorted(found)}, which may have side effects. Remove them from the model, or rename your "
            "own methods or values with these names."
        )
    if loading:
        raise ArtifactError(f"runs {sorted(loading)} in __setstate__ when loaded. Save the model without that method.")
    _check_depth(needs, depths)


def check_type(annotation: object) -> None:
    """Check a type annotation.

    Raises:
        ArtifactError: the annotation is malformed or nested too deeply.
    """
    if not isinstance(annotation, str) or len(annotation) > 10_000 or annotation.count("[") > 100:
        raise ArtifactError("has a value whose type is nested too deeply. Save a simpler model.")
    check_code({"code/type.py": annotation})


class _Scan:
    def __init__(self, definition: str, record: str) -> None:
        tokens = list(_tokens(definition, record))
        self.found = set(_reaching_outside(tokens))
        self.paths = {".".join(_path(tokens, place)) for place in _roots(tokens, "__torch__")}
        self.depth = _depth(tokens) + definition.count("def ") + definition.count("elif ")


def _tokens(definition: str, record: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(definition):
        token = _TOKEN.match(definition, position)
        if token is None:
            line = definition.count("\n", 0, position) + 1
            raise ArtifactError(
                f"contains code that torch.jit.save never writes: {definition[position : position + 20]!r} "
                f"on line {line} of a definition in {record}. Save the model again."
            )
        position = token.end()
        if token.lastgroup != "space":
            yield str(token.lastgroup), token[0]


def _roots(tokens: Sequence[tuple[str, str]], word: str) -> Iterator[int]:
    """Yield the positions at which `word` occurs, except as an attribute."""
    for place, token in enumerate(tokens):
        if token[1] == word and (not place or tokens[place - 1][1] != "."):
            yield place


def _path(tokens: Sequence[tuple[str, str]], place: int) -> list[str]:
    path = [tokens[place][1]]
    while tokens[place + 1 : place + 2] == [("sign", ".")] and tokens[place + 2 : place + 3]:
        place += 2
        path.append(tokens[place][1])
    return path


def _reaching_outside(tokens: Sequence[tuple[str, str]]) -> Iterator[str]:
    own = _packages(tokens)
    for place, (kind, text) in enumerate(tokens):
        if kind == "word" and _REFUSED.fullmatch(text) and place not in own:
            yield text
    for place in _roots(tokens, "torch"):
        if _path(tokens, place)[1:2] in ([], ["center"]):
            yield "torch" if len(_path(tokens, place)) < 2 else "center"
    for place in _roots(tokens, "ops"):
        _, *path = _path(tokens, place)
        if _is_defined(tokens, place):
            continue
        if len(path) < 2 or path[0] not in LIBRARIES:
            yield path[0] if path else "ops"
        elif path[0] == "prim" and not _PRIM.fullmatch(path[1]):
            yield f"prim.{path[1]}"
    for place in _roots(tokens, "__torch__"):
        _, *path = _path(tokens, place)
        if path in ([], ["torch"]):
            yield "__torch__"
        elif path[:2] == ["torch", "classes"] and (len(path) < 4 or path[2] not in LIBRARIES):
            yield path[2] if len(path) > 2 else "torch.classes"
    for place in _roots(tokens, "getattr"):
        yield from _attribute(tokens, place)


def _packages(tokens: Sequence[tuple[str, str]]) -> set[int]:
    """Return the token positions of package and module names in `__torch__` paths (the file's classes and functions).

    The last word of a path is excluded: it may be an operator on a value, such as a member of an enumeration.
    """
    return {
        place + 2 * number
        for place in _roots(tokens, "__torch__")
        for number in range(1, len(_path(tokens, place)) - 1)
    }


def _is_defined(tokens: Sequence[tuple[str, str]], place: int) -> bool:
    """Whether the word at `place` is the name in a class, method or field definition."""
    before, after = tokens[max(place - 1, 0)], tokens[place + 1 : place + 2]
    is_field = before == ("line", "\n  ") and after == [("sign", ":")]
    return before in (("word", "class"), ("word", "def")) or is_field


def _attribute(tokens: Sequence[tuple[str, str]], place: int) -> Iterator[str]:
    """Yield a description of the `getattr` call at `place` if its attribute name is forbidden or not a plain string."""
    depth, end = 0, place + 1
    while end < len(tokens):
        depth += {"open": 1, "close": -1}.get(tokens[end][0], 0)
        if depth <= 0:
            break
        end += 1
    (_, comma), (kind, text) = tokens[end - 2], tokens[end - 1]
    name = text.strip('"')
    if comma != "," or kind != "string" or "\\" in name or _REFUSED.fullmatch(name):
        yield f"getattr of {name[:50]}"


def _depth(tokens: Iterable[tuple[str, str]]) -> int:
    """Estimate the nesting depth of code from its indentation, brackets and runs of tokens without a comma."""
    deepest = run = indentation = 0
    outer: list[int] = []
    for kind, text in tokens:
        if kind == "line" and not outer:
            run, indentation = 0, len(text) - 1
        elif kind == "open":
            outer.append(run)
            run += 2
        elif kind == "close" and outer:
            run = outer.pop() + 2
        elif text == ",":
            run = outer[-1] + 2 if outer else 0
        else:
            run += kind != "line"
        deepest = max(deepest, indentation + run // 2)
    return deepest


def _check_depth(needs: Mapping[str, set[str]], depths: Mapping[str, int]) -> None:
    total: dict[str, int] = {}
    try:
        order = list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        raise ArtifactError(f"has circular definitions: {error.args[1][:3]}. Save the model again.") from None
    for name in order:
        total[name] = depths.get(name, 0) + max((total[part] for part in needs.get(name, ())), default=0)
        if total[name] > _MAX_DEPTH:
            raise ArtifactError(f"has code nested {total[name]:,} levels deep, expected at most {_MAX_DEPTH}.")


def _done_at_load(definition: str) -> Iterator[str]:
    """Yield all operations that a class runs when it is loaded, except packing a quantized layer's weights."""
    _, *parts = _METHOD.split(definition)
    methods = dict(zip(parts[::2], parts[1::2], strict=True))
    pending, seen = ["__setstate__"], {"__setstate__"}
    while pending:
        body = methods.get(pending.pop(), "")
        yield from _COMPUTED.findall(body)
        calls = set(_CALLED.findall(body)) & methods.keys() - seen
        seen |= calls
        pending += calls
