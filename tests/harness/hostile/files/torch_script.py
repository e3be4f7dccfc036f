"""TorchScript that writes files, or takes more memory, time or stack than its size justifies.

Each artifact is opened twice: as a model of somebody else that is to be exported, and as a part of a repository.
"""

import io
import struct
import zipfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.harness.hostile.files import EFFECT, Case, Family

FOREIGN, REPOSITORY = "foreign", "repository"
CLASS = "class M(Module):\n  __parameters__ = []\n  __buffers__ = []\n"
DATA = b"\x80\x02c__torch__\nM\n)\x81}b."
NO_CONSTANTS = b"\x80\x02)."
LOOP = "while True:\n  pass"
MANY = 100_000


def archive(code: str | bytes, data: bytes = DATA, *, compression: int = zipfile.ZIP_STORED, **records: bytes) -> bytes:
    """A TorchScript file."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as file:
        file.writestr("m/data.pkl", data)
        file.writestr("m/code/__torch__.py", code)
        file.writestr("m/constants.pkl", NO_CONSTANTS)
        file.writestr("m/version", "3\n")
        for name, content in records.items():
            file.writestr(f"m/{name.replace('__', '/')}", content)
    return stream.getvalue()


def indented(body: str, levels: int) -> str:
    return "".join(f"{'  ' * levels}{line}\n" for line in body.split("\n"))


def forward(body: str) -> str:
    """A module that runs statements on `x`."""
    return CLASS + "  def forward(self: __torch__.M, x: Tensor) -> Tensor:\n" + indented(body, 2)


def loading(body: str, further: str = "") -> bytes:
    """A module that runs statements when it is loaded."""
    methods = (
        "  def __getstate__(self: __torch__.M) -> int:\n    return 1\n"
        f"  def __setstate__(self: __torch__.M, state: int) -> NoneType:\n{indented(body, 2)}    return None\n"
    )
    code = CLASS + methods + further + "  def forward(self: __torch__.M, x: Tensor) -> Tensor:\n    return x\n"
    return archive(code, b"\x80\x02c__torch__\nM\n)\x81K\x01b.")


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def storage(num_items: int = 4, key: str = "0", dtype: str = "FloatStorage") -> bytes:
    fields = text("storage") + b"ctorch\n" + dtype.encode() + b"\n" + text(key) + text("cpu") + number(num_items)
    return b"(" + fields + b"tQ"


def tensor(stored: bytes, offset: int = 0, sizes: tuple[int, ...] = (4,), strides: tuple[int, ...] = (1,)) -> bytes:
    shape = b"".join(b"(" + b"".join(map(number, numbers)) + b"t" for numbers in (sizes, strides))
    head = b"ctorch._utils\n_rebuild_tensor_v2\n(" + stored + number(offset) + shape
    return head + b"\x89ccollections\nOrderedDict\n)RtR"


def attribute(value: bytes, kind: str = "Any") -> bytes:
    """A module with an attribute."""
    code = CLASS + f"  w : {kind}\n  def forward(self: __torch__.M, x: Tensor) -> Tensor:\n    return x\n"
    return archive(code, b"\x80\x02c__torch__\nM\n)\x81}(" + text("w") + value + b"ub.", data__0=bytes(16))


def writing(path: str) -> dict[str, bytes]:
    """Programs that write a file when they are loaded or run."""
    call = f'("{path}", True, 4)'
    bodies = {
        "from_file": f"return torch.from_file{call}",
        "from_file of ops": f"return ops.aten.from_file{call}",
        "save": f'torch.save(x, "{path}")\nreturn x',
        "method save": f'x.save("{path}")\nreturn x',
        "ops under another name": f"a = ops\nb = a.aten\nreturn b.from_file{call}",
        "torch under another name": f"a = torch\nreturn a.from_file{call}",
        "continued line": f"return ops.\\\naten.\\\nfrom_file{call}",
        "comment inside a name": f"return (ops # a\n.aten.from_file){call}",
        "line inside a name": f"return (ops\n.aten\n.from_file){call}",
        "blanks inside a name": f"return ops . aten . from_file{call}",
        "tabs inside a name": f"return ops\t.\vaten\f.from_file{call}",
        "getattr": f'return getattr(torch, "from_file"){call}',
        "getattr of ops": f'return getattr(ops.aten, "from_file"){call}',
        "getattr of pieces": f'return getattr(torch, "from" "_file"){call}',
        "getattr of an escape": f'return getattr(torch, "\\146rom_file"){call}',
        "getattr of single quotes": f"return getattr(torch, 'from_file'){call}",
        "getattr of three quotes": f'return getattr(torch, """from_file"""){call}',
        "getattr under another name": f'g = getattr\nreturn g(torch, "from" "_file"){call}',
        "getattr of a tensor": f'getattr(x, "sa" "ve")("{path}")\nreturn x',
        "getattr of a tensor by an escape": f'getattr(x, "s\\141ve")("{path}")\nreturn x',
        "getattr in getattr": f'return getattr(getattr(ops, "aten"), "from" "_file"){call}',
        "behind a string of three quotes": f'a = """"\nb = torch.from_file{call}\nc = """"\nreturn x',
        "behind a number": f"return x if 0x1or ops.aten.from_file{call} is None else x",
        "FileStore": f'a = __torch__.torch.classes.dist_c10d.FileStore("{path}", 1)\nreturn x',
        "FileStore renamed": f'a = __torch__.torch\nb = a.classes\nb.dist_c10d.FileStore("{path}", 1)\nreturn x',
        "load_tensor": f'return ops.debugprims.load_tensor("{path}", [1], [1])',
        "sends": 'return ops._c10d_functional.broadcast(x, 0, "a")',
        "rpc": 'a = ops.prim.rpc_async("a", x)\nreturn x',
        "Python": "a = ops.prim.PythonOp(x)\nreturn x",
        "frees memory": "ops.inductor.resize_storage_bytes_(x, 0)\nreturn x",
        "no bounds": "return ops.aten._sparse_coo_tensor_unsafe(x, x, [1])",
    }
    save = f'torch.save(1, "{path}")'
    method = f"  def f(self: __torch__.M) -> NoneType:\n    {save}\n    return None\n"
    return {
        **{f"code: {name}": archive(forward(body)) for name, body in bodies.items()},
        "load: writes": loading(save),
        "load: writes in a method": loading("_0 = (self).f()", method),
        "code: in a record of other case": archive("", **{"code____torch__.PY": forward(bodies["from_file"]).encode()}),
        "code: windows lines": archive(forward(bodies["from_file"]).replace("\n", "\r\n")),
        "code: utf-16": archive(forward(bodies["from_file"]).encode("utf-16")),
    }


def costly() -> Iterator[tuple[str, bytes]]:
    """Programs that take memory, time or stack to load."""
    doubled = "\n".join(f"a{i + 1} = torch.add(a{i}, a{i})" for i in range(40))
    bodies = {
        "doubled string": f'a0 = "{"a" * 1000}"\n{doubled}\nreturn torch.add(x, torch.len(a40))',
        "padded string": 'a = torch.ljust("a", 20000000000, " ")\nreturn torch.add(x, torch.len(a))',
        "method of a string": 'a = "a".zfill(20000000000)\nreturn torch.add(x, torch.len(a))',
        "parentheses": "return " + "(" * MANY + "x" + ")" * MANY,
        "calls": "return " + "torch.neg(" * MANY + "x" + ")" * MANY,
        "calls of results": "return x" + "(x)" * MANY,
        "lists": "y = " + "[" * MANY + "x" + "]" * MANY + "\nreturn x",
        "dictionaries": "y = " + "{1: " * MANY + "x" + "}" * MANY + "\nreturn x",
        "items": "return x" + "[0]" * MANY,
        "signs": "return " + "-" * MANY + "x",
        "sums": "return " + "x+" * MANY + "x",
        "powers": "return " + "x**" * MANY + "x",
        "not": "y = " + "not " * MANY + "True\nreturn x",
        "or": "y = " + "True or " * MANY + "True\nreturn x",
        "choices": "return " + "x if True else " * MANY + "x",
        "attributes": "return x" + ".T" * MANY,
        "types": "y : " + "List[" * MANY + "int" + "]" * MANY + " = []\nreturn x",
        "strings": "y = " + '"a" ' * MANY + "\nreturn x",
        "blocks": "\n".join("  " * i + "if True:" for i in range(2000)) + "\n" + "  " * 2000 + "pass\nreturn x",
        "elif": "if True:\n  pass\n" + "elif True:\n  pass\n" * MANY + "return x",
        "statements": "y = x\n" + "y = torch.neg(y)\n" * 400_000 + "return y",
        "one long name": "y = " + "a" * (8 << 20) + "\nreturn x",
    }
    for name, body in bodies.items():
        yield f"cost: {name}", archive(forward(body))
    names = [f"f{i}(x)" if i < 5000 else "x" for i in range(5001)]
    functions = (f"def f{i}(x: Tensor) -> Tensor:\n  return __torch__.{names[i + 1]}\n" for i in range(4999))
    yield "cost: functions", archive(forward("return __torch__.f0(x)") + "".join(functions))
    methods = (f"  def f{i}(self: __torch__.M) -> int:\n    return (self).f{i + 1}()\n" for i in range(5000))
    yield "cost: methods", archive(forward("y = (self).f0()\nreturn x") + "".join(methods))
    classes = (f"class C{i}(Module):\n  __parameters__ = []\n  a : __torch__.C{i + 1}\n" for i in range(5000))
    yield "cost: classes", archive(CLASS + "  a : __torch__.C0\n" + "".join(classes))
    yield (
        "cost: circle",
        archive(forward("return __torch__.f(x)") + "def f(x: __torch__.M):\n  return __torch__.f(x)\n"),
    )
    endless = {
        "loop": LOOP,
        "range": "for i in range(1000000000000):\n  pass",
        "products": "a = torch.matmul(torch.ones([9000, 9000]), torch.ones([9000, 9000]))",
        "zeros": "a = torch.zeros([100000000000])",
        "list": "a = torch.mul([1], 100000000000)",
    }
    for name, body in endless.items():
        yield f"load: {name}", loading(body)
    method = f"  def f(self: __torch__.M) -> NoneType:\n{indented(LOOP, 2)}    return None\n"
    yield "load: loop in a method", loading("_0 = (self).f()", method)
    yield "load: loop in a function", loading("_0 = __torch__.f()")


def attributes() -> Iterator[tuple[str, bytes]]:
    """Pickles that PyTorch's reader trusts too much."""
    tensors = {
        "storage of more than there is": tensor(storage(1 << 20), 0, (1 << 20,)),
        "storage of a terabyte": tensor(storage(1 << 40), 0, (1 << 40,)),
        "storage of wider items": tensor(storage(4, dtype="DoubleStorage")),
        "storage of unknown items": tensor(storage(4, dtype="Float9Storage")),
        "storage that is not there": tensor(storage(4, key="1")),
        "storage outside": tensor(storage(4, key="../version")),
        "storage of negative size": tensor(storage(-4)),
        "storage without end": tensor(storage((1 << 63) - 1)),
        "storage read again and again": b"(" + tensor(storage()) * 1000 + b"t",
        "tensor longer than its storage": tensor(storage(), 0, (1 << 20,)),
        "tensor before its storage": tensor(storage(), -1000),
        "tensor behind its storage": tensor(storage(), 1 << 40),
        "tensor of wide strides": tensor(storage(), 0, (2,), (1 << 40,)),
        "tensor of negative strides": tensor(storage(), 0, (2,), (-1000,)),
        "tensor of negative size": tensor(storage(), 0, (-4,)),
        "tensor of unlike shapes": tensor(storage(), 0, (2, 2), (1,)),
        "tensor that repeats": tensor(storage(), 0, (1 << 50,), (0,)),
        "tensor of no storage": tensor(number(0)),
    }
    for name, value in tensors.items():
        yield f"pickle: {name}", attribute(value, "Tensor")
    values = {
        "tuples": b")" + b"\x85" * 900_000,
        "lists": b"]" + b"](" * MANY + b"e" * MANY,
        "dictionaries": b"}" + b"}(K\x01" * MANY + b"u" * MANY,
        "objects": b"(" * MANY + b"ccollections\nOrderedDict\n" + b"ccollections\nOrderedDict\n)R" + b"\x85" * MANY,
        "a list of itself": b"]q\x00(h\x00e",
        "many lists": b"(" + b"]" * 8_000_000 + b"t",
        "memo": b"Nr\xff\xff\xff\x7f",
        "long string": b"X\xff\xff\xff\xff",
        "type tag": b"ctorch.jit._pickle\nrestore_type_tag\n(]" + text("List[" * MANY + "int" + "]" * MANY) + b"tR",
        "type tag of a class": b"ctorch.jit._pickle\nrestore_type_tag\n(]"
        + text("List[__torch__.torch.classes.dist_c10d.FileStore]")
        + b"tR",
        "os.system": b"cos\nsystem\n(" + text("id") + b"tR",
        "rref": b"ctorch.distributed.rpc\nrref\n(K\x01K\x01K\x01K\x01K\x01K\x01X\x01\x00\x00\x00atR",
        "FileStore": b"c__torch__.torch.classes.dist_c10d\nFileStore\n)\x81)b",
        "FileStore in two parts": b"c__torch__.torch\nclasses.dist_c10d.FileStore\n)\x81)b",
        "expression for a class": b"c__torch__\n" + b"M[" * 1000 + b"\n)\x81)b",
        "call of a number": b"K\x00)R",
        "call of a class of numbers": b"K\x00}b",
        "tensor of another kind": b"ctorch._tensor\n_rebuild_from_type_v2\n(K\x01K\x01)}tR",
        "sparse tensor": b"ctorch._utils\n_rebuild_sparse_tensor\n(K\x01)tR",
        "no mark": b"t",
        "unknown instruction": b"\x8c\x01a",
    }
    for name, value in values.items():
        yield f"pickle: {name}", attribute(value)
    yield "pickle: constants", archive(forward("return x"), constants__0=b"").replace(NO_CONSTANTS, b"\x80\x02K.")


def containers(path: str) -> Iterator[tuple[str, bytes]]:
    """Zip archives in which two readers may find different records, or which unpack to more than they should."""
    good = archive(forward("return x"))
    bad = archive(forward(f'return torch.from_file("{path}", True, 4)'))
    yield "zip: one before the other", bad + good
    yield "zip: one behind the other", good + bad
    yield "zip: one in the comment of the other", good[:-2] + struct.pack("<H", len(bad)) + bad
    yield "zip: bytes before", b"MZ" * 100 + good
    yield "zip: bytes behind", good + b"\0" * 100
    for number_of_records in range(3):
        yield f"zip: two ends of 64 bits, {number_of_records}", two_ends(good, bad, number_of_records)
    yield "zip: one name twice", twice("m/code/__torch__.py")
    yield "zip: one name in two cases", twice("m/CODE/__torch__.py")
    yield "zip: two folders", twice("n/code/__torch__.py")
    yield "zip: another name in the record", good.replace(b"m/code/__torch__.py", b"m/code/__torch__.pX", 1)
    yield "zip: a name with a zero", good.replace(b"m/code/__torch__.py", b"m/code/__torch__\0py")
    for name, method in (("lzma", zipfile.ZIP_LZMA), ("bzip2", zipfile.ZIP_BZIP2)):
        yield f"zip: {name}", archive(forward("return x"), compression=method)
    for name in ("data/0", "data.pkl", "code/__torch__.py"):
        yield f"zip: bomb in {name}", bomb(name)
    yield "zip: outputs that are deep", archive(forward("return x"), **{"extra__outputs.json": b"[" * MANY})
    yield "zip: outputs that are no names", archive(forward("return x"), **{"extra__outputs.json": b"[1]"})
    yield "zip: of PyTorch 1.0", archive(forward("return x"), **{"model.json": b"{}"})
    yield "zip: no version", good.replace(b"m/version", b"m/vErsion")
    yield "zip: records over each other", overlapping(good)
    yield "zip: encrypted", good.replace(b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01\x00")
    for share in range(1, 10):
        yield f"zip: the first {share} tenths", good[: len(good) * share // 10]


def two_ends(first: bytes, second: bytes, kind: int) -> bytes:
    """An archive whose two end records, old and new, are each of another archive."""

    def directory(content: bytes) -> tuple[int, int, int]:
        _, _, _, _, count, size, offset, _ = struct.unpack("<4s4HIIH", content[-22:])
        return count, size, offset

    body = first + second
    count, size, offset = directory(first)
    other_count, other_size, other_offset = directory(second)
    record = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, offset)
    other_offset += len(first)
    other = struct.pack(
        "<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, other_count, other_count, other_size, other_offset
    )
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(body), 1)
    saturated = struct.pack("<4s4HIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    plain = struct.pack("<4s4HIIH", b"PK\x05\x06", 0, 0, other_count, other_count, other_size, other_offset, 0)
    return (
        body
        + (other + record + locator + saturated, record + other + locator + saturated, record + locator + plain)[kind]
    )


@cache
def bomb(name: str) -> bytes:
    """An archive with a record of 256 MiB."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for other in {"data.pkl", "code/__torch__.py", "constants.pkl", "version"} - {name}:
            file.writestr(f"m/{other}", b"")
        with file.open(f"m/{name}", "w", force_zip64=True) as record:
            for _ in range(1 << 4):
                record.write(bytes(1 << 24))
    return stream.getvalue()


def twice(name: str) -> bytes:
    stream = io.BytesIO(archive(forward("return x")))
    with zipfile.ZipFile(stream, "a") as file:
        file.NameToInfo.clear()  # no warning of the second
        file.writestr(name, forward("return torch.neg(x)"))
    return stream.getvalue()


def overlapping(content: bytes) -> bytes:
    """All entries of the directory lead to the first record."""
    parts = content.split(b"PK\x01\x02")
    return parts[0] + b"".join(b"PK\x01\x02" + part[:38] + bytes(4) + part[42:] for part in parts[1:])


def artifacts(path: str) -> dict[str, bytes]:
    """All of them, by name; `path` is the file that those that write would write."""
    return {**writing(path), **dict(costly()), **dict(attributes()), **dict(containers(path))}


def cases() -> Iterator[Case]:
    for name in artifacts(""):
        for place in (FOREIGN, REPOSITORY):
            yield Case(name=f"{place}: {name}", write=partial(write, name, place))


def write(name: str, place: str, directory: Path) -> Path:
    path = directory / place / "model.pt"
    path.parent.mkdir()
    path.write_bytes(artifacts(str(directory / EFFECT))[name])
    return path


def open_and_run(path: Path) -> Any:
    """What an export does with a model of somebody else, and scoring with one in a repository."""
    from rankline.serving.engines.pytorch.offline import Model
    from rankline.serving.importers import open_model

    row = np.ones((1, 1), np.float32)
    if path.parent.name == FOREIGN:
        return open_model(path).run({"x": row})
    return Model(path).served_call(["x"])(row)


def warm_up() -> None:
    import rankline.serving.engines.pytorch.offline
    import rankline.serving.importers.torch_script  # noqa: F401


FAMILY = Family(open=open_and_run, cases=cases, warm_up=warm_up)
