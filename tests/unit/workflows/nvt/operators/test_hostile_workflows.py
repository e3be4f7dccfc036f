"""Artifacts of others: whatever `workflow.pkl` says, reading it touches nothing but the files of its directory."""

import io
import logging
import os
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import numpy as np
import pandas as pd
import pytest

from rankline.workflows.core.errors import ArtifactError, ConfigError
from rankline.workflows.nvt import operators
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.io import restore as saved_parts
from rankline.workflows.nvt.io.pickle_reader import parse_pickle
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in, load_workflow, save_workflow
from rankline.workflows.nvt.operators import Categorify, GreaterThan, HashedCategorify, NullToEmptyList
from tests.harness.hostile.pickles import Made, Name, pickled
from tests.harness.process.audit_hooks import record_side_effects

import dask.dataframe  # isort: skip  # after the settings of rankline.workflows.nvt.compat
from merlin.dag import iter_nodes  # isort: skip
from merlin.dag.ops.subgraph import Subgraph  # isort: skip

ROWS = pd.DataFrame({"user": [1, 1, 2, 7], "item": [10, 20, 10, 99], "rating": [1.0, 5.0, 3.0, 4.0]})
ITEMS = pd.DataFrame({"item": [10, 20], "genres": [["a", "é"], []]})


def graph() -> Any:
    genres = (["item"] >> ops.JoinExternal(ITEMS, on=["item"]))["genres"] >> NullToEmptyList() >> Categorify()
    ids = ["user"] >> HashedCategorify(freq_threshold=2, num_buckets=4)
    mean = ["user"] >> ops.TargetEncoding("rating", kfold=1)
    return ids + genres + mean + (["rating"] >> GreaterThan(3.0))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workflow as it should be, and a marker that nobody may read or write beside it."""
    directory = tmp_path_factory.mktemp("artifacts") / "workflow"
    with quiet_nvtabular():
        workflow = nvt.Workflow(graph())
        keep_vocabularies_in(workflow, directory)
        save_workflow(workflow.fit(nvt.Dataset(ROWS)), directory)
        load_workflow(directory).transform(ROWS.copy())  # what is imported late is imported now
    return directory


def named() -> Iterator[Name]:
    """Every name that a workflow may hold."""
    for name in saved_parts._RULES:
        yield Name(*name.rsplit(".", 1))
    for module, names in (*saved_parts._TYPES.items(), *saved_parts._INNER.items()):
        yield from (Name(module, name) for name in names)
    for kind in (*vars(ops).values(), *vars(operators).values()):
        if (
            isinstance(kind, type)
            and issubclass(kind, ops.Operator)
            and kind.__module__.startswith(saved_parts._OPERATORS)
        ):
            yield Name(kind.__module__, kind.__name__)


NDARRAY, DTYPE, DATASET = Name("numpy", "ndarray"), Name("numpy", "dtype"), Name("merlin.io.dataset", "Dataset")
OBJECTS = Made(DTYPE, ("O8", False, True), (3, "|", None, None, None, -1, -1, 63))
NUMBERS = Made(DTYPE, ("i8", False, True), (3, "<", None, None, None, -1, -1, 0))
TAKEN_FOR_NUMBERS = Made(DTYPE, ("i8", False, True), (3, "<", None, None, None, -1, -1, 63))
OUTSIDE = "/nobody/may/read/this"
ARGUMENTS: list[tuple[Any, ...]] = [
    (),
    (OUTSIDE,),
    (
        f"filecache::file://{OUTSIDE}",
        {"storage_options": {"filecache": {"cache_storage": "/nobody", "same_names": True}}},
    ),
    (["http://127.0.0.1:9/x"], "parquet"),
    ("dask://127.0.0.1:9", Made(DATASET, ("http://127.0.0.1:9/x",))),
    ({"user": OUTSIDE}, [OUTSIDE], OUTSIDE),
    (NDARRAY, (1 << 62,), b"b"),
    (NDARRAY, (0,), b"b"),
    (bytearray(b"A" * 16), OBJECTS, (2,), "C"),
    (b"A" * 16, NUMBERS, (1 << 61, 8), "C"),
    (OBJECTS, b"A" * 8),
    ("O8,V16", False, True),
    ([("a", "O8")], True, True),
    (1 << 62, -1, 0),
]
STATES: list[Any] = [
    None,
    {"out_path": "http://127.0.0.1:9/", "categories": {"user": OUTSIDE}, "df_ext": OUTSIDE, "_ext_cache": OUTSIDE},
    {"transform": Name("numpy", "float32"), "__class__": Name("builtins", "object")},
    {"_mgr": Made(Name("pandas.core.internals.managers", "BlockManager"), ((), [[], []])), "schema": OUTSIDE},
    (3, "|", None, ("a",), {"a": (OBJECTS, 1 << 40)}, 8, 1, 63),
    (1, (1 << 62,), NUMBERS, False, b"A"),
    (1, (2,), OBJECTS, False, b"A" * 16),
    (1, (2,), TAKEN_FOR_NUMBERS, False, b"A" * 16),
    [OUTSIDE],
]


def outside(acts: list[str], directory: Path) -> list[str]:
    """What was done, but for reading an artifact, and where Python looks for modules and installed operators."""
    readable = "|".join(map(re.escape, (str(directory), *filter(None, sys.path), "__editable__")))
    reads = re.compile(rf"(os\.listdir|os\.scandir|open) \('({readable})[^']*'(, 'rb?')?")
    return [act for act in acts if not reads.match(act)]


def test_acts_of_code_are_seen(tmp_path: Path) -> None:
    with record_side_effects() as acts:
        (tmp_path / "file").write_text("x")
        (tmp_path / "made").mkdir()
        exec("1")
    assert [act.split()[0] for act in acts] == ["open", "os.mkdir", "compile", "exec"]


def test_dataset_does_not_leave_a_file_where_a_pickle_wants_it(tmp_path: Path) -> None:
    (tmp_path / "chosen.py").write_text("print()")
    options = {"filecache": {"cache_storage": str(tmp_path / "site-packages"), "same_names": True}}
    arguments = (f"filecache::file://{tmp_path}/chosen.py", "csv", None, None, None, options)
    (tmp_path / "workflow.pkl").write_bytes(pickled(Made(DATASET, arguments)))
    with pytest.raises(ArtifactError, match=r"Dataset with arguments"):
        load_workflow(tmp_path)
    assert not (tmp_path / "site-packages").exists()


@pytest.mark.parametrize("how", [pickle.REDUCE, pickle.NEWOBJ])
def test_names_in_a_workflow_cannot_be_made_to_act(saved: Path, how: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name, called with each of the arguments and filled with each of the states."""
    monkeypatch.setitem(sys.modules, "cupy", None)  # Merlin looks for it, and Python lists directories for that
    tried = [pickled(Made(*hostile, how)) for hostile in product(named(), ARGUMENTS, STATES)]
    num_made = 0
    with record_side_effects() as acts, quiet_nvtabular():
        for hostile in tried:
            with suppress(Exception):
                saved_parts.make_parts(parse_pickle(io.BytesIO(hostile)))
                num_made += 1
    assert acts == []
    assert len(tried) > 5_000
    assert 0 < num_made < len(tried) / 5


def altered(change: Callable[[Any], None], saved: Path, directory: Path) -> Path:
    """A copy of a workflow in which one thing is not as it should be."""
    shutil.copytree(saved, directory)
    workflow = load_workflow(directory)
    with quiet_nvtabular():
        change(workflow)
    (directory / "workflow.pkl").write_bytes(cloudpickle.dumps(workflow))
    return directory


def operator_of(workflow: Any, kind: type) -> Any:
    return next(node.op for node in iter_nodes([workflow.output_node]) if isinstance(node.op, kind))


def set_operator(kind: type, **values: Any) -> Callable[[Any], None]:
    return lambda workflow: vars(operator_of(workflow, kind)).update(values)


def set_file(kind: type, attribute: str, file: str) -> Callable[[Any], None]:
    def change(workflow: Any) -> None:
        operator = operator_of(workflow, kind)
        setattr(
            operator, attribute, {column: file.format(operator.out_path) for column in getattr(operator, attribute)}
        )

    return change


def lazily(workflow: Any) -> None:
    """A Dask graph whose task makes a directory."""
    frame = dask.dataframe.from_delayed(dask.delayed(os.mkdir)("/nobody"), meta=ITEMS)
    operator_of(workflow, ops.JoinExternal).df_ext.engine._ddf = frame


def in_tasks(workflow: Any) -> None:
    """A Dask graph of tasks that call only what a workflow may name."""
    frame = operator_of(workflow, ops.JoinExternal).df_ext.engine._ddf
    (layer,) = frame.dask.layers.values()
    layer.mapping = {(frame._name, 0): (nvt.Dataset, OUTSIDE)}


def from_file(workflow: Any) -> None:
    path = Path(operator_of(workflow, HashedCategorify).categories["user"])
    operator_of(workflow, ops.JoinExternal).df_ext = nvt.Dataset(str(path))


def in_circles(workflow: Any) -> None:
    workflow.output_node.parents[0].parents.append(workflow.output_node)


def downwards_in_circles(workflow: Any) -> None:
    workflow.output_node.children.append(workflow.output_node.parents[0])


def in_itself(workflow: Any) -> None:
    workflow.output_node.op = Subgraph("inner", ["user"] >> ops.LogOp())
    workflow.output_node.op.graph.output_node = workflow.output_node


def in_diamonds(workflow: Any) -> None:
    for _ in range(40):
        node = type(workflow.output_node)()
        node.op = ops.LogOp()
        node.parents = [workflow.output_node, workflow.output_node]
        workflow.graph.output_node = node


def without_operator(workflow: Any) -> None:
    workflow.output_node.op = OUTSIDE


FILE_OUTSIDE = "which is not in the workflow's directory"
ALTERED: dict[str, tuple[Callable[[Any], None], str]] = {
    "an address to save to": (set_operator(ops.TargetEncoding, out_path="http://127.0.0.1:9/"), FILE_OUTSIDE),
    "a scheduler to save to": (set_operator(Categorify, out_path="dask://127.0.0.1:9"), FILE_OUTSIDE),
    "a vocabulary elsewhere": (set_file(Categorify, "categories", "/etc/passwd"), FILE_OUTSIDE),
    "a vocabulary above": (set_file(Categorify, "categories", "{}/../secret.parquet"), FILE_OUTSIDE),
    "a vocabulary at an address": (set_file(Categorify, "categories", "{}/x::http://127.0.0.1:9/"), FILE_OUTSIDE),
    "statistics elsewhere": (set_file(ops.TargetEncoding, "stats", "file:///etc/passwd"), FILE_OUTSIDE),
    "a vocabulary of nothing": (set_operator(Categorify, vocabs={"nobody": OUTSIDE}), "KeyError: 'nobody'"),
    "a file to join": (set_operator(ops.JoinExternal, df_ext=OUTSIDE), "has no table to join"),
    "a Dataset of a file": (from_file, "ParquetDatasetEngine, which is not data"),
    "a task that acts": (lazily, "which is not data"),
    "a task": (in_tasks, "merlin.io.dataset.Dataset, which is not data"),
    "a method replaced": (set_operator(Categorify, transform=np.float32), "Categorify with arguments"),
    "a circle": (in_circles, "has a cycle"),
    "a circle downwards": (downwards_in_circles, "has a cycle"),
    "a graph in itself": (in_itself, "has a cycle"),
    "too many paths": (in_diamonds, "more than 100000 paths"),
    "a node without operator": (without_operator, "has a node without an operator"),
    "no graph": (lambda workflow: vars(workflow).update(graph=None), "it has no graph"),
}


@pytest.mark.parametrize("name", ALTERED)
def test_altered_workflow_is_refused(saved: Path, tmp_path: Path, name: str) -> None:
    change, error = ALTERED[name]
    directory = altered(change, saved, tmp_path / "altered")
    with record_side_effects() as acts, pytest.raises(ArtifactError, match=error):
        load_workflow(directory)
    assert outside(acts, directory) == []


def test_vocabulary_behind_a_link_is_refused(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "linked")
    (vocabulary,) = (tmp_path / "linked").rglob("unique.user.parquet")
    vocabulary.rename(tmp_path / "elsewhere.parquet")
    vocabulary.symlink_to(tmp_path / "elsewhere.parquet")
    with pytest.raises(ArtifactError, match=FILE_OUTSIDE):
        load_workflow(tmp_path / "linked")


def nested_key(depth: int) -> bytes:
    return pickle.EMPTY_DICT + pickle.EMPTY_TUPLE + pickle.TUPLE1 * depth + pickle.NONE + pickle.SETITEM + pickle.STOP


def twice_in_each_other(code: bytes) -> bytes:
    """Sixty containers, each of which holds the one before it twice."""
    levels = (pickle.MARK + 2 * (pickle.BINGET + bytes([level])) + code + pickle.MEMOIZE for level in range(60))
    return pickle.NONE + pickle.MEMOIZE + b"".join(levels) + pickle.STOP


MANY_ROWS = Made(
    Name("pandas.core.indexes.base", "_new_Index"),
    (Name("pandas.core.indexes.range", "RangeIndex"), {"start": 0, "stop": 1 << 40, "step": 1, "name": None}),
)
MANAGER = Made(Name("pandas.core.internals.managers", "SingleBlockManager"), (), ([MANY_ROWS], [0]))
TOO_MUCH = {
    "numbers": pickled(Made(Name("numpy.core.numeric", "_frombuffer"), (b"A" * 8, NUMBERS, (1 << 62,), "C"))),
    "a memo": pickle.NONE + pickle.LONG_BINPUT + b"\xff" * 4 + pickle.STOP,
    "bytes": pickle.BYTEARRAY8 + (1 << 40).to_bytes(8, "little") + pickle.STOP,
    "text": pickle.BINUNICODE8 + (1 << 40).to_bytes(8, "little") + pickle.STOP,
    "lists in lists": pickle.EMPTY_LIST * 50_000 + pickle.APPEND * 49_999 + pickle.STOP,
    "a key in keys": nested_key(100_000),
    "an extension": pickle.EXT1 + b"\x01" + pickle.STOP,
    "nothing": b"",
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_pickle_that_asks_for_too_much_memory_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "workflow.pkl").write_bytes(TOO_MUCH[name])
    with pytest.raises(ArtifactError, match=r"workflow\.pkl"):
        load_workflow(tmp_path)


STANDS_FOR_MORE = r"expands to more than 32 times that size"
UNEXPECTED = "with arguments or state that NVTabular does not save"
OF_MUCH = {
    "tuples that hold each other twice": (twice_in_each_other(pickle.TUPLE), STANDS_FOR_MORE),
    "a text many times": (
        pickled("x" * 100_000)[:-1]
        + pickle.MEMOIZE
        + pickle.EMPTY_LIST
        + pickle.MARK
        + (pickle.BINGET + b"\0") * 10_000
        + pickle.APPENDS
        + pickle.STOP,
        STANDS_FOR_MORE,
    ),
    "a list in itself": (
        pickle.EMPTY_LIST + pickle.MEMOIZE + pickle.BINGET + b"\0" + pickle.APPEND + pickle.STOP,
        "it contains itself",
    ),
    "a series of one value": (
        pickled(Made(Name("pandas.core.series", "Series"), (), {"_mgr": MANAGER, "name": None})),
        UNEXPECTED,
    ),
    "rows of nothing": (
        pickled(Made(Name("numpy.core.numeric", "_frombuffer"), (b"", NUMBERS, (1 << 40, 0), "C"))),
        UNEXPECTED,
    ),
}


@pytest.mark.parametrize("name", OF_MUCH)
def test_pickle_that_expands_too_much_is_refused(tmp_path: Path, name: str) -> None:
    content, reason = OF_MUCH[name]
    (tmp_path / "workflow.pkl").write_bytes(content)
    with pytest.raises(ArtifactError, match=reason):
        load_workflow(tmp_path)


@pytest.mark.parametrize("num_buckets", [{"user": 10**9}, 10**9, 0])
def test_buckets_beyond_any_memory_are_refused(num_buckets: Any) -> None:
    with quiet_nvtabular():
        operator = HashedCategorify(freq_threshold=2, num_buckets=4)
    operator.num_buckets = num_buckets
    with pytest.raises(ConfigError, match=r"has \d+ buckets for unseen values, expected 1 to 67108864"):
        operator.buckets_of("user")


def test_workflow_with_bytes_changed_reads_no_other_file(
    saved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "merlin")  # a traceback that it would log compiles the lines that it shows
    shutil.copytree(saved, tmp_path / "changed")
    path = tmp_path / "changed" / "workflow.pkl"
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    num_loaded = 0
    with record_side_effects() as acts, quiet_nvtabular():
        for _ in range(300):
            changed = bytearray(whole)
            for position in rng.integers(0, len(whole), 2):
                changed[position] = rng.integers(0, 256)
            path.write_bytes(changed)
            with suppress(ArtifactError):
                workflow = load_workflow(tmp_path / "changed")
                num_loaded += 1
                with suppress(Exception):  # rows may be what it does not take
                    workflow.transform(ROWS.copy())
    assert num_loaded > 0
    assert outside(acts, tmp_path / "changed") == []
