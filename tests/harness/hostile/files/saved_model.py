"""SavedModels that two readers could read differently, or that take other files, memory or time than they show."""

import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from rankline.serving.engines.tensorflow.allowed_operations import check_served
from rankline.serving.importers import open_model
from rankline.workflows.core.errors import RanklineError
from tests.harness.hostile.files import EFFECT, Case, Family
from tests.oracles.saved_model_fields import is_map, wire_type

Parts = list[tuple[int, int, Any]]
"""Fields of a message as they are written: number, wire type, and value or content."""

Place = tuple[tuple[int, int], ...]
"""Where a message is: field and place among the parts of that number, from the outside."""

UNKNOWN = 1000
HUGE = 1 << 40
GRAPH: Place = ((2, 0),)
FUNCTION: Place = (*GRAPH, (2, 0), (2, 0), (1, 0))
OTHER_FILES = (
    *("saved_model.pbtxt", "saved_model.cpb", "saved_model.pb.bak", "variables/variables", "variables/checkpoint"),
    *("variables/variables.meta", "variables/variables.data-1-of-1", "variables/x/variables.index"),
)
FIFOS = (
    *("saved_model.pb", "fingerprint.pb", "saved_model.pbtxt", "variables/variables", "variables/variables.index"),
    *("variables/variables.data-00000-of-00001", "debug/saved_model_debug_info.pb", "assets/x"),
)


def save(path: Path) -> None:
    """An honest model with a variable, a table and a function that is called."""
    import tensorflow as tf

    module = tf.Module()
    module.weight = tf.Variable([[2.0]])
    source = tf.lookup.KeyValueTensorInitializer(tf.constant([3, 1], tf.int64), tf.constant([3.0, 1.0]))
    module.table = tf.lookup.StaticHashTable(source, -1.0)
    specs = [tf.TensorSpec([None, 1], tf.float32, "a")]

    def scored(a: Any) -> dict[str, Any]:
        looked_up = module.table[tf.cast(a, tf.int64)]
        return {"y": tf.cond(tf.reduce_sum(a) > 0, lambda: a @ module.weight, lambda: looked_up)}

    score = tf.function(scored, input_signature=specs, autograph=False)
    module.score = score
    tf.saved_model.save(module, str(path), signatures={"serving_default": score, "serving_padded": score})


@cache
def honest() -> dict[str, bytes]:
    """Files of the model by name."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as directory:
        save(Path(directory, "saved"))
        files = [file for file in Path(directory, "saved").rglob("*") if file.is_file()]
        return {file.relative_to(Path(directory, "saved")).as_posix(): file.read_bytes() for file in files}


def write_honest(path: Path) -> Path:
    for name, content in honest().items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def varint(value: int) -> bytes:
    content = b""
    while value >= 0x80:
        content += bytes([value & 0x7F | 0x80])
        value >>= 7
    return content + bytes([value])


def parse(content: bytes) -> Parts:
    """Fields of a message."""
    parts, at = Parts(), 0

    def take() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = content[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(content):
        tag = take()
        if tag & 7 == 0:
            parts.append((tag >> 3, 0, take()))
        else:
            size = {1: 8, 5: 4}.get(tag & 7) or take()
            parts.append((tag >> 3, tag & 7, content[at : at + size]))
            at += size
    return parts


def render(parts: Parts) -> bytes:
    """A message of fields."""
    return b"".join(field(*part) for part in parts)


def field(number: int, wire: int, value: Any) -> bytes:
    """One field; a group holds nothing."""
    tag = varint(number << 3 | wire)
    if wire == 0:
        return tag + varint(value)
    if wire == 3:
        return tag + varint(number << 3 | 4)
    return tag + (varint(len(value)) if wire == 2 else b"") + bytes(value)


def changed(content: bytes, where: Place, change: Callable[[Parts], Parts]) -> bytes:
    """A message in which another one is changed."""
    parts = parse(content)
    if not where:
        return render(change(parts))
    (number, place), *rest = where
    index = [i for i, part in enumerate(parts) if part[0] == number][place]
    parts[index] = (number, 2, changed(parts[index][2], tuple(rest), change))
    return render(parts)


@cache
def places() -> dict[str, tuple[Any, Place]]:
    """Each type of message that the model has, with the first place where it is."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    found: dict[str, tuple[Any, Place]] = {}
    waiting: list[tuple[Any, Place, bytes]] = [(SavedModel.DESCRIPTOR, (), honest()["saved_model.pb"])]
    for message, where, content in waiting:
        found.setdefault(message.full_name, (message, where))
        count: dict[int, int] = {}
        for number, _, value in parse(content):
            place = count[number] = count.get(number, -1) + 1
            held = message.fields_by_number[number].message_type
            if held is not None and len(waiting) < 20_000:
                waiting.append((held, (*where, (number, place)), value))
    return found


def value_of(known: Any) -> Any:
    """A value of a field, such as it has when it is not the default; none of a message."""
    sizes = {0: 1, 1: b"\1" * 8, 5: b"\1" * 4, 2: b"x"}
    return b"" if known.message_type is not None or known.is_packed else sizes[wire_type(known)]


def changes(message: Any) -> Iterator[tuple[str, Callable[[Parts], Parts]]]:
    """What can be wrong with a type of message, by name."""
    yield "unknown field", lambda parts: [*parts, (UNKNOWN, 2, b"x")]
    yield "unknown number", lambda parts: [(UNKNOWN, 0, 1), *parts]
    yield "group", lambda parts: [*parts, (UNKNOWN, 3, None)]
    yield "group of a known number", lambda parts: [*parts, (1, 3, None)]
    for known in message.fields:
        wrong = {0: (2, b"x"), 1: (0, 1), 2: (0, 1), 5: (0, 1)}[wire_type(known)]
        yield f"{known.name} of another type", partial(_with, (known.number, *wrong))
        if is_map(known):
            yield f"key of {known.name} twice", partial(_twice, known.number)
        elif not known.is_repeated:
            yield f"{known.name} twice", partial(_twice_with, (known.number, wire_type(known), value_of(known)))
            if known.containing_oneof and len(known.containing_oneof.fields) > 1:
                other = next(field for field in known.containing_oneof.fields if field is not known)
                yield f"{known.name} beside {other.name}", partial(_with_both, known, other)


def _with(part: tuple[int, int, Any], parts: Parts) -> Parts:
    return [*parts, part]


def _twice(number: int, parts: Parts) -> Parts:
    entry = next((part for part in parts if part[0] == number), (number, 2, b"\x0a\x01a\x12\0"))
    return [*(part for part in parts if part != entry), entry, entry]


def _twice_with(part: tuple[int, int, Any], parts: Parts) -> Parts:
    first = next((found for found in parts if found[0] == part[0]), part)
    return [*(found for found in parts if found[0] != part[0]), first, part]


def _with_both(known: Any, other: Any, parts: Parts) -> Parts:
    added = [(member.number, wire_type(member), value_of(member)) for member in (known, other)]
    return [*(part for part in parts if part[0] not in (known.number, other.number)), *added]


def _write_message(where: Place, change: Callable[[Parts], Parts], directory: Path) -> Path:
    path = write_honest(directory / "saved")
    (path / "saved_model.pb").write_bytes(changed(honest()["saved_model.pb"], where, change))
    return path


def _write_changed(change: Callable[[Any, str], None], directory: Path) -> Path:
    """A model whose only graph is changed; `change` also takes the file that its payload makes."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    path = write_honest(directory / "saved")
    message = SavedModel.FromString(honest()["saved_model.pb"])
    change(message.meta_graphs[0], str(directory / EFFECT))
    (path / "saved_model.pb").write_bytes(message.SerializeToString())
    return path


def _write_beside(name: str, make: Callable[[Path], Any], directory: Path) -> Path:
    path = write_honest(directory / "saved")
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).unlink(missing_ok=True)
    make(path / name)
    return path


def _link_folder(name: str, directory: Path) -> Path:
    path = write_honest(directory / "saved")
    (path / name).mkdir(exist_ok=True)
    (path / name).rename(directory / "elsewhere")
    (path / name).symlink_to(directory / "elsewhere")
    return path


def _with_a_tail(tail: bytes, directory: Path) -> Path:
    return _copy(honest()["saved_model.pb"] + tail, write_honest(directory / "saved") / "saved_model.pb").parent


def _writing(nodes: Any, effect: str) -> None:
    """Nodes of a function that write a file."""
    import tensorflow as tf

    for name, text in (("their_path", effect), ("their_text", "x")):
        node = nodes.add(name=name, op="Const")
        node.attr["dtype"].type = tf.string.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(text))
    nodes.add(name="their_file", op="WriteFile", input=["their_path:output:0", "their_text:output:0"])


def _write_hidden(where: Place, directory: Path) -> Path:
    """Functions that write a file, and behind a message an empty one of the same number: the reader's last one."""
    path = _write_changed(_all_write, directory)
    content = (path / "saved_model.pb").read_bytes()
    (path / "saved_model.pb").write_bytes(changed(content, where, partial(_with, (1, 2, b""))))
    return path


def _all_write(graph: Any, effect: str) -> None:
    for function in graph.graph_def.library.function:
        _writing(function.node_def, effect)


def _nodes(graph: Any, in_function: bool) -> Any:
    return graph.graph_def.library.function[0].node_def if in_function else graph.graph_def.node


def _huge_constant(shape: tuple[int, ...], in_function: bool, graph: Any, effect: str) -> None:
    import tensorflow as tf

    node = _nodes(graph, in_function).add(name="their_zeros", op="Const")
    node.attr["dtype"].type = tf.int32.as_datatype_enum
    node.attr["value"].tensor.dtype = tf.int32.as_datatype_enum
    for size in shape:
        node.attr["value"].tensor.tensor_shape.dim.add(size=size)
    node.attr["value"].tensor.int_val.append(0)


def _operation(name: str, in_function: bool, graph: Any, effect: str) -> None:
    _nodes(graph, in_function).add(name="theirs", op=name)


def _same_name(of_function: bool, graph: Any, effect: str) -> None:
    twice = graph.graph_def.library.function if of_function else graph.graph_def.node
    twice.add().CopyFrom(twice[0])


def _calls(depth: int, width: int, graph: Any, effect: str) -> None:
    """Functions of which each calls the one before it; one that is alone calls itself."""
    import tensorflow as tf

    first, *_ = graph.graph_def.library.function
    names = [first.signature.name, *(f"their_{number}" for number in range(depth))]
    functions = [first, *(graph.graph_def.library.function.add() for _ in range(depth))]
    for place, function in enumerate(functions):
        function.signature.name = names[place]
        for number in range(0 if depth and not place else width):
            node = function.node_def.add(name=f"their_call_{number}", op="PartitionedCall")
            node.attr["f"].func.name = names[place - 1]
            node.attr["Tin"].list.type.append(tf.float32.as_datatype_enum)


def _nested(graph: Any, effect: str) -> None:
    value = graph.graph_def.node[0].attr["their_functions"]
    for _ in range(60):
        value = value.func.attr["f"]


def _cases() -> Iterator[Case]:
    for name, (message, where) in places().items():
        for what, change in changes(message):
            yield Case(name=f"{name}: {what}", write=partial(_write_message, where, change))
    yield Case(name="tags hidden by a second meta_info_def", write=partial(_write_hidden, GRAPH))
    yield Case(name="name hidden by a second signature", write=partial(_write_hidden, FUNCTION))
    yield Case(name="a second schema version", write=partial(_with_a_tail, field(1, 0, 1)))
    yield Case(name="a number with more bytes than it needs", write=partial(_with_a_tail, b"\x08\x81\x00"))
    yield Case(name="a tag with more bytes than it needs", write=partial(_with_a_tail, b"\x88\x00\x01"))
    yield Case(name="cut off", write=partial(_with_a_tail, b"\x12\x7f"))
    yield Case(name="no field", write=partial(_with_a_tail, b"\x02\x00"))
    yield Case(name="deeply nested", write=partial(_write_changed, _nested))
    for in_function in (False, True):
        place = "function" if in_function else "graph"
        for shape in ((HUGE,), (1 << 31,), (1 << 20, 1 << 20), (2, 1 << 26), (1 << 62, 1 << 62)):
            alter = partial(_huge_constant, shape, in_function)
            yield Case(name=f"constant {shape} in a {place}", write=partial(_write_changed, alter))
        for operation in ("WriteFile", "ReadFile", "PyFuncStateless", "ImmutableConst", "TheirOwnOp", "Abort"):
            alter = partial(_operation, operation, in_function)
            yield Case(name=f"{operation} in a {place}", write=partial(_write_changed, alter))
        yield Case(name=f"two of a name in a {place}", write=partial(_write_changed, partial(_same_name, in_function)))
    for name in OTHER_FILES:
        copy = partial(_copy, honest()["saved_model.pb"])
        yield Case(name=f"beside it: {name}", write=partial(_write_beside, name, copy))
    for name in FIFOS:
        yield Case(name=f"a pipe: {name}", write=partial(_write_beside, name, os.mkfifo))
        link = partial(Path.symlink_to, target="/dev/zero")
        yield Case(name=f"a device: {name}", write=partial(_write_beside, name, link))
    for name in ("variables", "assets"):
        yield Case(name=f"a link to a folder: {name}", write=partial(_link_folder, name))
    for size in (0, 1, 4):
        data = "variables/variables.data-00000-of-00001"
        yield Case(name=f"variables of {size} bytes", write=partial(_write_beside, data, partial(_resize, size)))
    for depth, width in ((20, 2), (60, 2), (9, 10), (101, 1), (3000, 1)):
        alter = partial(_calls, depth, width)
        yield Case(name=f"{depth} functions, each called {width} times", write=partial(_write_changed, alter))
    yield Case(name="a function that calls itself", write=partial(_write_changed, partial(_calls, 0, 1)))


def _copy(content: bytes, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def _resize(size: int, file: Path) -> None:
    file.touch()
    os.truncate(file, size)


def open_both(path: Path) -> None:
    """Open it as somebody else's model, and check it as one that is served: both refuse it, or neither does."""
    refused = [error for error in (_error(check_served, path), _error(open_model, path)) if error]
    assert len(refused) != 1, f"only one refuses: {refused}"
    if refused:
        raise refused[0]


def _error(call: Callable[[Path], Any], path: Path) -> RanklineError | None:
    try:
        call(path)
    except RanklineError as error:
        return error
    return None


def _warm_up() -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as directory:
        open_both(write_honest(Path(directory)))
    places()


FAMILY = Family(open=open_both, cases=_cases, warm_up=_warm_up)
