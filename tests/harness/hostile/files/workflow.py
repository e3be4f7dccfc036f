"""Saved NVTabular workflows: vocabularies and pickles that stand for much more than they take on the disk."""

import os
import pickle
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from functools import cache, partial
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse

from rankline.workflows.compiler.compile import compile_workflow
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in, load_workflow, save_workflow
from rankline.workflows.nvt.operators import HashedCategorify, PaddedListSlice
from tests.harness.hostile.files import Case, Family
from tests.harness.hostile.pickles import Made, Name, pickled, put

from merlin.dag import iter_nodes  # isort: skip

ROWS = pd.DataFrame(
    {
        "user": ["a", "b", "b", "c"],
        "item": [1, 2, 2, 3],
        "tags": [[1, 2], [3], [1], [2]],
        "price": [1.0, 2.0, 3.0, 4.0],
        "liked": [0.0, 1.0, 1.0, 0.0],
    }
)
ITEMS = pd.DataFrame({"item": [1, 2, 3], "color": ["red", "blue", "red"]})
VOCABULARY, STATISTICS = "categories/unique.user.parquet", "categories/cat_stats.item.parquet"


def graph() -> Any:
    user = ["user"] >> HashedCategorify(num_buckets=4)
    tags = ["tags"] >> ops.Categorify() >> PaddedListSlice(0, 4)
    means = ["item"] >> ops.TargetEncoding("liked", kfold=1)
    colors = (["item"] >> ops.JoinExternal(ITEMS, on=["item"]))["color"] >> ops.Categorify()
    return user + tags + means + colors


@cache
def honest() -> Path:
    """A workflow as NVTabular saves it."""
    directory = Path(mkdtemp(prefix="rankline-hostile-")) / "workflow"
    with quiet_nvtabular():
        workflow = nvt.Workflow(graph())
        keep_vocabularies_in(workflow, directory)
        save_workflow(workflow.fit(nvt.Dataset(ROWS)), directory)
        use(directory)
    return directory


def use(directory: Path) -> None:
    """What an export does with a workflow of somebody else."""
    workflow = load_workflow(directory)
    compile_workflow(deepcopy(workflow))
    with quiet_nvtabular(), suppress(Exception):  # NVTabular's own, as an operator may be filled with anything
        workflow.transform(ROWS.copy())


def copied(directory: Path) -> Path:
    return shutil.copytree(honest(), directory / "workflow")


def with_file(name: str, write: Callable[[Path], object], directory: Path) -> Path:
    """The honest workflow, in which something else is in the place of a file."""
    made = copied(directory)
    path = made / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    write(path)
    return made


def with_pickle(content: bytes, directory: Path) -> Path:
    return with_file("workflow.pkl", lambda path: path.write_bytes(content), directory)


# --- What is no file


def bind(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def sparse(size: int, path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(size)


NO_FILES: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a socket": bind,
    "a directory": lambda path: path.mkdir(),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "nothing in it": lambda path: path.touch(),
    "a hole of 4 GB": partial(sparse, 4 << 30),
    "a hole of 300 MB": partial(sparse, 300 << 20),
}


# --- Vocabularies


def parquet(table: pa.Table, *, times: int = 1, **options: Any) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        with pq.ParquetWriter(path, table.schema, **{"compression": "NONE", **options}) as writer:
            for _ in range(times):
                writer.write_table(table)

    return write


MANY = 4_000_000


def of_user(values: Any) -> pa.Table:
    return pa.table({"user": values})


def often(text: str | bytes, rows: int, kind: pa.DataType) -> pa.Table:
    return of_user(pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([text], kind)))


def vocabularies() -> Iterator[tuple[str, Callable[[Path], object]]]:
    zeros = of_user(np.zeros(MANY, np.int64))
    yield "nulls", parquet(of_user(pa.nulls(MANY, pa.string())), times=30)
    yield "nulls of no type", parquet(of_user(pa.nulls(MANY)), times=30)
    yield "one number", parquet(zeros, times=30)
    yield "one truth", parquet(of_user(np.zeros(MANY, bool)), times=30)
    yield "one time", parquet(of_user(pa.array(np.zeros(MANY, "datetime64[us]"))), times=30)
    yield (
        "numbers by their differences",
        parquet(of_user(np.arange(MANY)), times=30, use_dictionary=False, column_encoding="DELTA_BINARY_PACKED"),
    )
    yield "many columns", parquet(pa.table({f"c{i}": np.zeros(100_000, np.int8) for i in range(500)}))
    for codec in ("ZSTD", "GZIP", "BROTLI", "LZ4"):
        yield f"zeros in {codec}", parquet(zeros, times=10, use_dictionary=False, compression=codec)
    for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        text: Any = "x" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else b"x"
        yield f"a long {kind}", parquet(often(text * 1_000_000, 8_000, kind))
        yield f"a {kind} in snappy", parquet(often(text * 5_000_000, 2_000, kind), compression="SNAPPY")
    yield "a wide number", parquet(often(b"x" * 1_000_000, 8_000, pa.binary(1_000_000)))
    for encoding in ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"):
        text = of_user(["x" * (20 * i) for i in range(3_000)])
        yield f"texts in {encoding}", parquet(text, times=20, use_dictionary=False, column_encoding=encoding)
    yield "lists", parquet(of_user(pa.array([[0] * 1_000_000])), times=300)
    yield "lists in lists", parquet(of_user(pa.array([[[0] * 1_000_000]])), times=300)
    yield "no Parquet", lambda path: path.write_text("user\na\n")
    yield "a footer of zeros", lambda path: path.write_bytes(b"PAR1" + bytes(1000) + b"\xe8\x03\x00\x00PAR1")
    yield (
        "a footer of lists",
        lambda path: path.write_bytes(
            b"PAR1\x15\x04\x19\xfc" + b"\xff" * 4 + b"\x07" + bytes(1000) + b"\xf4\x03\x00\x00PAR1"
        ),
    )
    yield "a footer larger than the file", lambda path: path.write_bytes(b"PAR1" + b"\xff\xff\xff\x7fPAR1")


def with_changed_footer(seed: int, directory: Path) -> Path:
    """Some bytes of a footer say something else."""
    made = copied(directory)
    content = bytearray((made / VOCABULARY).read_bytes())
    rng = np.random.default_rng(seed)
    for place in rng.integers(-int.from_bytes(content[-8:-4], "little") - 8, -8, 3):
        content[place] = rng.integers(0, 256)
    (made / VOCABULARY).write_bytes(content)
    return made


# --- Pickles


def doubled(container: bytes, levels: int = 60) -> bytes:
    """A container that holds the one before it twice, and so on: `container` makes one of the two on the stack."""
    levels_of = b"".join(
        pickle.MEMOIZE + pickle.POP + pickle.MARK + 2 * (pickle.LONG_BINGET + level.to_bytes(4, "little")) + container
        for level in range(levels)
    )
    return put("x") + levels_of


DTYPE, FRAME = Name("numpy", "dtype"), Name("pandas.core.frame", "DataFrame")
OBJECTS = Made(DTYPE, ("O8", False, True), (3, "|", None, None, None, -1, -1, 63))
NUMBERS = Made(DTYPE, ("i8", False, True), (3, "<", None, None, None, -1, -1, 0))
MANAGER = Name("pandas.core.internals.managers", "BlockManager")
BLOCK, NEW_INDEX = Name("pandas._libs.internals", "_unpickle_block"), Name("pandas.core.indexes.base", "_new_Index")
RANGE = Name("pandas.core.indexes.range", "RangeIndex")


def array(values: bytes, shape: tuple[int, ...], dtype: Made = NUMBERS) -> Made:
    return Made(Name("numpy.core.numeric", "_frombuffer"), (values, dtype, shape, "C"))


def index(length: int) -> Made:
    return Made(NEW_INDEX, (RANGE, {"start": 0, "stop": length, "step": 1, "name": None}))


def frame(values: Any, columns: int, rows: int) -> Made:
    blocks = (Made(BLOCK, (values, Made(Name("builtins", "slice"), (0, columns, 1)), 2)),)
    return Made(FRAME, (), {"_mgr": Made(MANAGER, (blocks, [index(columns), index(rows)]))})


def series(values: Any, rows: int) -> Made:
    manager = Made(Name("pandas.core.internals.managers", "SingleBlockManager"), (), ([index(rows)], [values]))
    return Made(Name("pandas.core.series", "Series"), (), {"_mgr": manager, "name": None})


def referred(value: bytes, times: int) -> bytes:
    """A list of one value many times."""
    return (
        value
        + pickle.MEMOIZE
        + pickle.POP
        + pickle.EMPTY_LIST
        + pickle.MARK
        + (pickle.BINGET + b"\0") * times
        + (pickle.APPENDS)
    )


def arrays_of_one(num_bytes: int, times: int) -> bytes:
    """Arrays that are all made of the same bytes."""
    begin = put(bytes(num_bytes)) + pickle.MEMOIZE + pickle.POP + pickle.EMPTY_LIST + pickle.MARK
    shape = (num_bytes // 8,)
    name = put(Name("numpy.core.numeric", "_frombuffer"))
    each = name + pickle.MARK + pickle.BINGET + b"\0" + put(NUMBERS) + put(shape) + put("C") + pickle.TUPLE
    return begin + (each + pickle.REDUCE) * times + pickle.APPENDS


def texts_of_one(size: int, times: int) -> bytes:
    """An array of the same text many times."""
    begin = put("x" * size) + pickle.MEMOIZE + pickle.POP
    made = put(Name("numpy.core.multiarray", "_reconstruct")) + put((Name("numpy", "ndarray"), (0,), b"b"))
    values = pickle.EMPTY_LIST + pickle.MARK + (pickle.BINGET + b"\0") * times + pickle.APPENDS
    state = pickle.MARK + put(1) + put((times,)) + put(OBJECTS) + pickle.NEWFALSE + values + pickle.TUPLE
    return begin + made + pickle.REDUCE + state + pickle.BUILD


def pickles() -> Iterator[tuple[str, bytes]]:
    for kind, code in {
        "tuples": pickle.TUPLE,
        "lists": pickle.LIST,
        "frozen sets": pickle.FROZENSET,
        "selectors": pickle.TUPLE + put(None) + pickle.TUPLE2,
    }.items():
        yield f"{kind} twice in each other", doubled(code) + pickle.STOP
    size = 10_000_000
    for name, code in {
        "lists": pickle.EMPTY_LIST,
        "dictionaries": pickle.EMPTY_DICT,
        "sets": pickle.EMPTY_SET,
        "marks": pickle.MARK,
        "tuples in tuples": pickle.EMPTY_TUPLE + pickle.TUPLE1 * 100,
        "memos": pickle.NONE + pickle.MEMOIZE * 1000,
        "nothings": pickle.NONE,
        "numbers": pickle.BININT + b"\0\0\0\1",
    }.items():
        yield f"many {name}", code * (size // len(code)) + pickle.STOP
    for name, code in {
        "BINBYTES8": pickle.BINBYTES8,
        "BINUNICODE8": pickle.BINUNICODE8,
        "BYTEARRAY8": pickle.BYTEARRAY8,
        "FRAME": pickle.FRAME,
    }.items():
        for claimed in (1 << 33, (1 << 63) - 1, (1 << 64) - 1):
            yield f"{name} of {claimed}", code + claimed.to_bytes(8, "little") + pickle.STOP
    for name, code in {"LONG4": pickle.LONG4, "BINBYTES": pickle.BINBYTES, "BINUNICODE": pickle.BINUNICODE}.items():
        for claimed in (0x7FFFFFFF, 0xFFFFFFFF):
            yield f"{name} of {claimed}", code + claimed.to_bytes(4, "little") + pickle.STOP
    yield "a number of a million digits", pickle.LONG4 + (400_000).to_bytes(4, "little") + b"\x7f" * 400_000 + b"."
    for name, code in {"lists": pickle.EMPTY_LIST, "tuples": pickle.TUPLE1}.items():
        yield f"{name} in {name}", pickle.EMPTY_TUPLE + code * 100_000 + pickle.APPEND * 99_999 + pickle.STOP
    yield "a list in itself", put([]) + pickle.MEMOIZE + pickle.BINGET + b"\0" + pickle.APPEND + pickle.STOP
    for columns, rows in product((1, 10**8, 10**12), repeat=2):
        for shape in ((1, 0), (0, 1), (columns, 0), (0, rows)):
            if columns * rows > 1:
                yield f"a frame of {columns} by {rows} from {shape}", pickled(frame(array(b"", shape), columns, rows))
    for rows in (10**9, 10**12):
        yield f"a series of {rows}", pickled(series(0, rows))
        yield f"a series of {rows} without values", pickled(series(None, rows))
        yield f"an array of nothing by {rows}", pickled(array(b"", (0, rows)))
    yield "one text many times", texts_of_one(1_000_000, 100_000) + pickle.STOP
    yield "one text in a list", referred(put("x" * 1_000_000), 100_000) + pickle.STOP
    yield "many arrays of the same bytes", arrays_of_one(8_000_000, 2_000) + pickle.STOP
    yield "a name of two lines", pickled(Name("os\n", "system\n"))
    yield "no workflow", pickled({"workflow": 1})


def operator_of(workflow: Any, kind: type) -> Any:
    return next(node.op for node in iter_nodes([workflow.output_node]) if isinstance(node.op, kind))


def with_attributes(kind: type, values: dict[str, Any], directory: Path) -> Path:
    """An operator claims something else."""
    made = copied(directory)
    workflow = load_workflow(made)
    vars(operator_of(workflow, kind)).update(values)
    (made / "workflow.pkl").write_bytes(cloudpickle.dumps(workflow))
    return made


def wide(width: int, directory: Path) -> Path:
    """A matrix that claims many columns, weighted by how often each has a value."""
    made = copied(directory)
    matrix = scipy.sparse.csr_matrix(([1.0], [width - 1], [0, 1]), shape=(1, width))
    with quiet_nvtabular():
        workflow = nvt.Workflow([["item", "price"]] >> ops.ColumnSimilarity(matrix, metric="tfidf", on_device=False))
        workflow.fit_schema(nvt.Dataset(ROWS[["item", "price"]].astype("int64")).schema)
    (made / "workflow.pkl").write_bytes(cloudpickle.dumps(workflow))
    return made


CLAIMS: dict[str, tuple[type, dict[str, Any]]] = {
    f"{kind.__name__} with {values}": (kind, values)
    for kind, values in (
        (PaddedListSlice, {"end": 10**9, "max_elements": 10**9}),
        (PaddedListSlice, {"end": 10**18, "max_elements": 10**18}),
        (HashedCategorify, {"num_buckets": {"user": 10**9}}),
        (HashedCategorify, {"num_buckets": {"user": 10**12}}),
        (HashedCategorify, {"num_buckets": 2**31}),
        (HashedCategorify, {"num_buckets": -5}),
    )
}


def cases() -> Iterator[Case]:
    honest()
    for (name, write), file in product(NO_FILES.items(), ("workflow.pkl", VOCABULARY, STATISTICS)):
        is_refused = (name, file) != ("a directory", STATISTICS)
        yield Case(name=f"{file}: {name}", write=partial(with_file, file, write), is_refused=is_refused)
    for name, write in NO_FILES.items():
        yield Case(
            name=f"a part of {STATISTICS}: {name}", write=partial(with_file, f"{STATISTICS}/part.0.parquet", write)
        )
    for (name, write), file in product(vocabularies(), (VOCABULARY, STATISTICS)):
        yield Case(name=f"{file}: {name}", write=partial(with_file, file, write))
    for seed in range(30):
        yield Case(name=f"a footer changed, {seed}", write=partial(with_changed_footer, seed), is_refused=False)
    for name, content in pickles():
        yield Case(name=f"workflow.pkl: {name}", write=partial(with_pickle, content))
    for name, (kind, values) in CLAIMS.items():
        yield Case(name=name, write=partial(with_attributes, kind, values))
    for width in (1 << 30, 1 << 36):
        yield Case(name=f"a matrix of {width} columns", write=partial(wide, width))


FAMILY = Family(open=use, cases=cases, warm_up=honest)
