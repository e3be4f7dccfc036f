"""`graph.json` of others: whatever it says, it is loaded as an honest file would be or refused, and touches nothing."""

import json
import logging
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.acts import watched_acts
from tests.support.golden import graph_json
from workflows.errors import ArtifactError
from workflows.upstream import nvt, quiet_nvtabular
from workflows.workflow_store import load_workflow

from merlin.dag import iter_nodes  # isort: skip
from merlin.schema import Tags  # isort: skip

Document = dict[str, Any]
Change = Callable[[Document], None]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return graph_json.unpack(tmp_path_factory.mktemp("graph_json"))


def changed(directory: Path, made: Path, change: Change) -> Path:
    """A copy of a saved workflow in which one thing is not as it should be."""
    shutil.copytree(directory, made)
    document = json.loads((made / "graph.json").read_text())
    change(document)
    (made / "graph.json").write_text(json.dumps(document))
    return made


def node_of(document: Document, kind: str) -> Document:
    return next(node for node in document["nodes"] if (node["op_class"] or "").endswith(f".{kind}"))


def at(kind: str, *names: str, value: Any) -> Change:
    """Set a field of the first node with such an operator."""

    def change(document: Document) -> None:
        *outer, last = names
        inner = node_of(document, kind)
        for name in outer:
            inner = inner[name]
        inner[last] = value

    return change


def document_with(**values: Any) -> Change:
    return lambda document: document.update(values)


def without(name: str) -> Change:
    return lambda document: document.pop(name)


def in_circles(document: Document) -> None:
    node_of(document, "Clip")["parent_ids"] = [node_of(document, "ConcatColumns")["id"]]


def twice(document: Document) -> None:
    """40 nodes, each of which takes the one before it twice."""
    last = document["output_node_id"]
    for number in range(100, 140):
        node = node_of(document, "LogOp") | {"id": number, "parent_ids": [last, last]}
        document["nodes"].append(node)
        last = number
    document["output_node_id"] = last


def in_a_row(document: Document) -> None:
    """2,000 nodes in a row, which is deeper than Python calls."""
    for number in range(100, 2_100):
        before = document["output_node_id"] if number == 100 else number - 1
        document["nodes"].append(node_of(document, "LogOp") | {"id": number, "parent_ids": [before]})
    document["output_node_id"] = 2_099


def graphs_in_graphs(document: Document) -> None:
    graph = {"output_node_id": 0, "nodes": [node_of(document, "SelectionOp") | {"id": 0}]}
    for number in range(200):
        node = node_of(document, "Subgraph") | {"id": 0, "parent_ids": [], "dependency_ids": []}
        node["op_params"] = {"name": f"{number}", "loop_until": None, "inner_graph": graph}
        graph = {"output_node_id": 0, "nodes": [node]}
    document.update(graph)


def first_file(name: str) -> Change:
    def change(document: Document) -> None:
        node_of(document, "Categorify")["op_state"]["categories"][0]["path"] = name

    return change


NOT_IN = "which is not in the directory of the workflow"
REFUSED: dict[str, tuple[str, Change, str]] = {
    "a later format": ("numbers", document_with(format_version=2), "format_version is 2, expected 1"),
    "no format": (
        "numbers",
        document_with(format_version="1"),
        "'format_version' of the file is \"1\", expected a whole",
    ),
    "no output": ("numbers", without("output_node_id"), "the file has no 'output_node_id'"),
    "an output elsewhere": ("numbers", document_with(output_node_id=99), "the file has no node 99"),
    "no nodes": ("numbers", without("nodes"), "has no node"),
    "nodes of numbers": ("numbers", document_with(nodes=[1, 2]), "contains what is 1, expected an object"),
    "two nodes of one id": (
        "numbers",
        lambda document: document["nodes"].append(document["nodes"][0]),
        "has several nodes with one id",
    ),
    "a missing node": (
        "numbers",
        at("Clip", "parent_ids", value=[77]),
        "takes columns of node 77, which the file does",
    ),
    "a circle": ("numbers", in_circles, "goes round in circles: nodes"),
    "itself": ("numbers", lambda d: at("Clip", "parent_ids", value=[node_of(d, "Clip")["id"]])(d), "in circles"),
    "many paths": ("numbers", twice, "paths of up to .* nodes to it, expected at most 100000"),
    "many nodes in a row": ("numbers", in_a_row, "paths of up to 151 nodes to it, expected at most 100000 of 150"),
    "graphs in graphs": ("a graph in a graph", graphs_in_graphs, "expected at most 100000 of 150|without end"),
    "an unknown operator": (
        "numbers",
        at("Clip", "op_class", value="os.system"),
        r"\(os\.system\) is of no known operator class, expected one of AddMetadata, Bucketize",
    ),
    "no operator": (
        "numbers",
        at("Clip", "op_class", value=None),
        r"node \d+ \(None\) is of no known",
    ),
    "text for a number": (
        "numbers",
        at("Clip", "op_params", "min_value", value="0"),
        r"'min_value' of 'op_params' of node \d+ \(nvtabular\.ops\.clip\.Clip\) is \"0\", expected a number or null",
    ),
    "a boolean for a number": (
        "numbers",
        at("Clip", "op_params", "min_value", value=True),
        "is true, expected a number",
    ),
    "nothing to clip to": ("numbers", at("Clip", "op_params", "min_value", value=None), "cannot be made: Must specify"),
    "text for a mean": ("numbers", at("Normalize", "op_state", "means", "price", value="1"), "'price' of 'means'"),
    "a list for means": (
        "numbers",
        at("Normalize", "op_state", "means", value=[1]),
        "'means' of .* expected an object",
    ),
    "a dtype of objects": (
        "numbers",
        at("Normalize", "op_params", "out_dtype", value={"name": "O"}),
        "expected a dtype of",
    ),
    "a dtype of parts": (
        "ids",
        at("Categorify", "op_params", "dtype", "name", value="i8,O"),
        "expected a dtype of num",
    ),
    "a dtype of nothing": ("ids", at("Categorify", "op_params", "dtype", "name", value="'"), "expected a dtype of num"),
    "text among boundaries": ("bins", at("Bucketize", "op_params", "boundaries", value=[1, "2"]), 'is "2", expected'),
    "boundaries of a number": (
        "bins",
        at("Bucketize", "op_params", "boundaries", value=3),
        "expected a list or an obj",
    ),
    "an encoding of nobody": ("ids", at("Categorify", "op_params", "encode_type", value="x"), "encode_type=x not supp"),
    "buckets of text": ("ids", at("Categorify", "op_params", "num_buckets", value={"user": "3"}), "'user' of 'num_buc"),
    "names of numbers": ("ids", at("SelectionOp", "selector", "names", value=[3]), "is 3, expected text"),
    "a column without name": ("ids", at("SelectionOp", "input_schema", value=[{}]), "has no 'name'"),
    "a type of nobody": (
        "ids",
        at("SelectionOp", "input_schema", value=[{"name": "x", "dtype": {"name": "x", "element_type": "code"}}]),
        "column 'x' of .* has no such schema: 'code' is not a valid ElementType",
    ),
    "tags that exclude each other": (
        "ids",
        at("SelectionOp", "input_schema", value=[{"name": "x", "tags": ["Tags.CONTINUOUS", "Tags.CATEGORICAL"]}]),
        "column 'x' of .* has no such schema: Could not create a TagSet",
    ),
    "a file above": ("ids", first_file("../../graph.json/../../../secret"), "is missing|" + NOT_IN),
    "the directory above": ("ids", first_file("../../.."), NOT_IN),
    "a file elsewhere": ("ids", first_file("/etc/passwd"), NOT_IN),
    "an address": ("ids", first_file("http://127.0.0.1:9/x.parquet"), "is missing"),
    "an address in an address": ("ids", first_file("x::http://127.0.0.1:9/"), "is missing"),
    "a file that is not there": ("ids", first_file("categories/gone.parquet"), "categories/gone.parquet is missing"),
    "a file of a number": ("ids", first_file(3), "'path' of .* is 3, expected text"),  # type: ignore[arg-type]
    "a function of text": (
        "a function",
        at("LambdaOp", "op_params", "f", value="os.system"),
        "expected an object or null",
    ),
    "no function": ("a function", at("LambdaOp", "op_params", "f", value=None), "f can not be `None`"),
}


def outside(acts: list[str], directory: Path) -> list[str]:
    """What was done, but for reading the workflow, and for looking where a module may be that is not installed."""
    looks = ("os.listdir", "os.scandir")
    return [act for act in acts if str(directory) not in act and not act.startswith(looks)]


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_saved_workflow_has_is_refused(saved: dict[str, Path], tmp_path: Path, name: str) -> None:
    of, change, error = REFUSED[name]
    directory = changed(saved[of], tmp_path / "changed", change)
    with watched_acts() as acts, pytest.raises(ArtifactError, match=f"(?s)graph.json was not loaded: .*({error})"):
        load_workflow(directory)
    assert outside(acts, directory) == []


@pytest.mark.parametrize("of", ["statistics", "targets", "a graph in a graph"])
def test_a_file_with_bytes_changed_is_refused_or_reads_its_own_files(
    saved: dict[str, Path], tmp_path: Path, of: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "merlin")  # a traceback that it would log compiles the lines that it shows
    load_workflow(saved[of]).transform(graph_json.rows())  # what is imported late is imported now
    shutil.copytree(saved[of], tmp_path / "changed")
    path = tmp_path / "changed" / "graph.json"
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    num_loaded = 0
    with watched_acts() as acts, quiet_nvtabular():
        for _ in range(100):
            one = bytearray(whole)
            for position in rng.integers(0, len(whole), 2):
                one[position] = rng.choice(list(b'"0123456789[]{},:.aTn/'))
            path.write_bytes(one)
            with suppress(ArtifactError):
                workflow = load_workflow(tmp_path / "changed")
                num_loaded += 1
                with suppress(Exception):  # rows may be what it does not take
                    workflow.transform(graph_json.rows())
    assert num_loaded > 0
    assert outside(acts, tmp_path) == []


def test_functions_are_not_imported_because_a_file_says_so(saved: dict[str, Path], tmp_path: Path) -> None:
    change = at("LambdaOp", "op_params", "f", value={"module": "antigravity", "qualname": "webbrowser.open"})
    directory = changed(saved["a function"], tmp_path / "changed", change)
    workflow = load_workflow(directory)
    assert "antigravity" not in sys.modules
    with pytest.raises(ArtifactError, match=r"LambdaOp on \['label'\] calls antigravity:webbrowser\.open, which no"):
        transformed(workflow)


def transformed(workflow: nvt.Workflow) -> Any:
    with quiet_nvtabular():
        return workflow.transform(graph_json.rows())


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_file_behind_a_link_is_refused(saved: dict[str, Path], tmp_path: Path, is_inside: bool) -> None:
    shutil.copytree(saved["targets"], tmp_path / "linked")
    file = next((tmp_path / "linked").rglob("cat_stats.user.parquet"))
    linked = file / "part.0.parquet" if is_inside else file
    linked.rename(tmp_path / "elsewhere.parquet")
    linked.symlink_to(tmp_path / "elsewhere.parquet")
    with pytest.raises(ArtifactError, match=NOT_IN):
        load_workflow(tmp_path / "linked")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"[" * 200_000, b'{"format_version": ' + b"9" * 9_999 + b"}"]
)
def test_what_is_no_json_object_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "graph.json").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"graph\.json (cannot be read|was not loaded)"):
        load_workflow(tmp_path)


def test_a_directory_with_two_workflows_is_refused(saved: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(saved["numbers"], tmp_path / "both")
    (tmp_path / "both" / "workflow.pkl").touch()
    with pytest.raises(ArtifactError, match=r"holds both workflow\.pkl and graph\.json.* Remove the older one"):
        load_workflow(tmp_path / "both")


def test_a_workflow_may_move(saved: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(saved["ids"], tmp_path / "first")
    (tmp_path / "first").rename(tmp_path / "second")
    assert len(transformed(load_workflow(tmp_path / "second"))) == len(graph_json.rows())


def test_schemas_and_tags_are_those_that_were_saved(saved: dict[str, Path]) -> None:
    with quiet_nvtabular():
        schema = load_workflow(saved["tags"]).output_schema
    assert set(schema["user"].tags) == {Tags.ID, Tags.USER}
    assert set(schema["item"].tags) == {"mine", "my.USER"}
    assert (schema["item"].properties["shown"], schema["small"].properties["unit"]) == ([1, "é"], "EUR")
    assert schema["small"].dtype.to_numpy == np.float32
    assert schema["small"].shape.as_tuple == ((0, None),)


def test_a_tag_of_ones_own_is_not_taken_for_merlins(saved: dict[str, Path]) -> None:
    """Its own reader takes what is behind the last full stop."""
    workflow = load_workflow(saved["tags"])
    assert Tags.USER not in workflow.output_schema["item"].tags


def test_extremes_are_of_the_type_that_they_were_learnt_as(saved: dict[str, Path], tmp_path: Path) -> None:
    def extremes(directory: Path) -> set[type]:
        nodes = iter_nodes([load_workflow(directory).output_node])
        return {type(low) for node in nodes for low in getattr(node.op, "mins", {}).values()}

    def of_wider_columns(document: Document) -> None:
        at("NormalizeMinMax", "op_state", "mins", "small", value=0.1)(document)

    assert extremes(saved["integers between extremes"]) == {np.int64}
    assert extremes(saved["numbers"]) == {np.float32}
    assert extremes(changed(saved["numbers"], tmp_path / "wider", of_wider_columns)) == {np.float64}
