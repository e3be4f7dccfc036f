"""The plan in C++ beside the one in Python, for plans of before, too. Lowerings compare them graph by graph."""

import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.core.errors import ArtifactError, RequestError
from rankline.workflows.plan import (
    ANY_WIDTH,
    Column,
    ColumnSpec,
    Computed,
    KeyIndex,
    StepCall,
    TransformPlan,
    tensor_call,
)
from rankline.workflows.plan.native_library import NativePlan
from rankline.workflows.plan.steps import Arithmetic, Cast, DatePart, Element, Fill, Limit, Narrow, Pad, Slice
from rankline.workflows.plan.tensors import unknown_columns
from rankline.workflows.schema.tensor_names import MISSING_LIST
from tests.oracles.native_plan import assert_native_is_the_same, assert_same_tensors, native_of, natively, open_native
from tests.oracles.native_programs import sanitized

FUZZ = Path(__file__).parents[3] / "oracles" / "native" / "fuzz_plan.cc"
WORDS = st.sampled_from([b"a", b"b", b"never", b"", b"\xff\0", b"x" * 128, b"x" * 129, b"x" * 300])
INT64 = st.integers(-(2**63), 2**63 - 1)


def plan(*columns: Any) -> TransformPlan:
    """Of users (numbers), items (strings), prices and histories; with more columns, of these."""
    strings = pa.array([b"a", b"b", b"x" * 300], pa.large_binary())
    return TransformPlan(
        inputs=(
            ColumnSpec(name="user", dtype="int64"),
            ColumnSpec(name="item", dtype="object"),
            ColumnSpec(name="price", dtype="float32"),
            ColumnSpec(name="history", dtype="object", width=ANY_WIDTH),
        ),
        indexes=(
            KeyIndex.build("user", np.array([7, 8, 2**40]), num_unknown=3, missing_row=6),
            KeyIndex.build("item", strings, missing_row=4),
        ),
        steps=(
            KeyIndex.build("history", strings, num_unknown=2, missing_row=5),
            StepCall(step=Fill(value=1.5), inputs=("price",)),
            StepCall(step=Arithmetic(function="log"), inputs=(3,)),
        ),
        columns=columns
        or (
            Column(name="user", index=0, values=np.arange(7)),
            Column(
                name="tags",
                index=1,
                values=np.arange(10).reshape(5, 2),
                lengths=np.array([0, 1, 2, 0, 0], dtype=np.int32),
            ),
            Computed(name="log_price", source=4, dtype="float32"),
            Column(name="history", index=2, values=np.arange(6.0), width=ANY_WIDTH),
        ),
    )


def strings(rows: list[list[bytes]]) -> Any:
    array = np.empty((len(rows), len(rows[0]) if rows else 1), dtype=object)
    for number, row in enumerate(rows):
        array[number] = row
    return array


REQUEST: dict[str, Any] = {
    "user": np.array([[7], [9]]),
    "item": strings([[b"a"], [b"c"]]),
    "price": np.array([[2.5], [np.nan]], np.float32),
    "history__values": strings([[b"b", b"a"], [b"", b""]]),
    "history__nnzs": np.array([[2], [MISSING_LIST + 1]], np.int32),
}
PLAN = plan()


@given(st.data(), st.integers(0, 4), st.integers(1, 4))
def test_any_request_gets_the_same_answer_from_both(data: st.DataObject, rows: int, width: int) -> None:
    def drawn(of: Any, size: int) -> list[Any]:
        return data.draw(st.lists(of, min_size=size, max_size=size))

    request = {
        "user": np.array(drawn(st.sampled_from([7, 8, 2**40]) | INT64, rows), np.int64).reshape(-1, 1),
        "item": strings([drawn(WORDS, 1) for _ in range(rows)]),
        "price": np.array(drawn(st.floats(width=32), rows), np.float32).reshape(-1, 1),
        "history__values": strings([drawn(WORDS, width) for _ in range(rows)]),
        "history__nnzs": np.array(drawn(st.integers(0, width), rows), np.int32).reshape(-1, 1),
        "user__valid": np.array(drawn(st.booleans(), rows), bool).reshape(-1, 1),
    }
    for name in data.draw(st.sets(st.sampled_from(["user__valid", "item", "price"]))):
        del request[name]
    assert_native_is_the_same(PLAN, request)


@pytest.mark.parametrize(
    "changed",
    [
        {"history__nnzs": np.array([[3], [0]], np.int32)},
        {"history__nnzs": np.array([[-2], [0]], np.int32)},
        {"price": np.zeros((3, 1), np.float32)},
        {"history__nnzs": np.zeros((2, 2), np.int32)},
        {"user": np.zeros((2, 2), np.int64)},
    ],
    ids=["too long", "below missing", "more rows", "two lengths", "two values"],
)
def test_contradictory_request_is_refused_by_both(changed: dict[str, Any]) -> None:
    request = REQUEST | changed
    with pytest.raises(RequestError):
        tensor_call(PLAN)(request)
    with pytest.raises(RequestError, match=r"lengths of|different numbers|lists? per row"):
        native_of(PLAN)(request)


def test_missing_value_is_refused_with_the_same_words() -> None:
    history = {"history__nnzs": np.array([[2], [MISSING_LIST]], np.int32)}
    raw = plan(
        Computed(name="cost", source="price", dtype="float32"), Computed(name="user", source="user", dtype="int64")
    )
    assert_native_is_the_same(PLAN, REQUEST | history)
    assert_native_is_the_same(raw, REQUEST | {"user__valid": np.array([[True], [False]])})
    assert_native_is_the_same(PLAN, {})


@given(st.lists(INT64 | st.integers(-1, 300), min_size=1, max_size=3), st.data())
def test_value_too_large_for_a_model_is_refused_with_the_same_words(values: list[int], data: st.DataObject) -> None:
    dtypes = ("bool", "int8", "uint8", "int16", "int32", "uint32", "uint64")
    if not _narrow:
        steps = [StepCall(step=Narrow(column=dtype, dtype=dtype), inputs=(dtype,)) for dtype in dtypes]
        steps += [StepCall(step=Limit(column="tags", width=2), inputs=("tags",))]
        columns = [Computed(name=dtype, source=at, dtype=dtype) for at, dtype in enumerate(dtypes)]
        columns += [Computed(name="tags", source=len(dtypes), dtype="int64", width=2)]
        inputs = [ColumnSpec(name=dtype, dtype="int64") for dtype in dtypes]
        inputs += [ColumnSpec(name="tags", dtype="int64", width=ANY_WIDTH)]
        _narrow.append(TransformPlan(inputs=tuple(inputs), indexes=(), steps=tuple(steps), columns=tuple(columns)))
    one, rows = data.draw(st.sampled_from(dtypes)), len(values)
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    request = {dtype: np.array(values if dtype == one else [1] * rows).reshape(-1, 1) for dtype in dtypes}
    request |= {"tags__values": np.arange(3 * rows).reshape(rows, 3), "tags__nnzs": np.int32(lengths).reshape(-1, 1)}
    assert_native_is_the_same(_narrow[0], request)


_narrow: list[TransformPlan] = []


def test_lists_are_limited_with_the_same_words(tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan")
    native = open_native(tmp_path / "plan", max_list_length=1)
    with pytest.raises(RequestError, match=re.escape("'history__values' has lists of 2 values, expected at most 1.")):
        native(REQUEST)
    assert_same_tensors(tensor_call(PLAN, max_list_length=1), native, REQUEST)


@given(st.integers(0, 3), st.integers(1, 4), st.data())
def test_candidates_are_transformed_as_in_python(rows: int, count: int, data: st.DataObject) -> None:
    def drawn(of: Any) -> list[list[Any]]:
        return [data.draw(st.lists(of, min_size=count, max_size=count)) for _ in range(rows)]

    of_candidates = plan(
        Column(name="user", index=0, values=np.arange(7)),
        Column(name="item", index=1, values=np.arange(5)),
        Computed(name="log_price", source=4, dtype="float32"),
    )
    request = {
        "user": np.full((rows, 1), 8),
        "item": strings(drawn(WORDS)) if rows else np.empty((0, count), object),
        "price": np.array(drawn(st.floats(width=32)), np.float32).reshape(rows, count),
        "history__values": strings([[b"a"]] * rows),
        "history__nnzs": np.ones((rows, 1), np.int32),
        "item__valid": np.array(drawn(st.booleans()), bool).reshape(rows, count),
    }
    names = ("item", "price")
    assert_same_tensors(tensor_call(of_candidates, names), candidate_native(of_candidates, names), request)
    if count > 1:
        other = request | {"price": np.zeros((rows, count + 1), np.float32)}
        with pytest.raises(RequestError, match="candidates"):
            candidate_native(of_candidates, names)(other)


_of_candidates: list[NativePlan] = []


def candidate_native(transform: TransformPlan, names: tuple[str, ...]) -> NativePlan:
    if not _of_candidates:
        _of_candidates.append(natively(transform, names))
    return _of_candidates[0]


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_vectors_have_one_length_in_both(dtype: str) -> None:
    one = TransformPlan(
        inputs=(ColumnSpec(name="emb", dtype=dtype, width=ANY_WIDTH),),
        indexes=(),
        steps=(
            StepCall(step=Element(column="emb", place=1, length=2), inputs=("emb",)),
            StepCall(step=Fill(value=7), inputs=(0,)),
        ),
        columns=(Computed(name="emb_1", source=1, dtype=dtype),),
    )
    request = {"emb__values": np.array([[1, 2], [0, 0], [0, 0]], dtype)}
    lengths = np.array([[2], [0], [MISSING_LIST]], np.int32)
    assert_native_is_the_same(one, request | {"emb__nnzs": lengths})
    with pytest.raises(RequestError, match="column 'emb' has a list of 1 values, expected 2"):
        native_of(one)(request | {"emb__nnzs": np.array([[2], [1], [0]], np.int32)})


def test_plan_that_mixes_candidates_with_their_row_is_refused() -> None:
    mixed = plan(Column(name="tags", index=1, values=np.zeros((5, 2)), lengths=np.zeros(5, np.int32)))
    with pytest.raises(ArtifactError, match="column 'tags' cannot be computed for several candidates"):
        natively(mixed, ("item",))
    with pytest.raises(ArtifactError, match="candidates 'basket' are not a raw column"):
        natively(mixed, ("basket",))


@given(st.lists(INT64, min_size=1, max_size=20))
def test_parts_of_any_time_are_numpys(times: list[int]) -> None:
    parts = ("year", "month", "day", "weekday", "hour", "minute", "day_of_year", "elapsed_days")
    if not _dates:
        steps = tuple(StepCall(step=DatePart(part=part), inputs=("at",)) for part in parts)
        columns = (Computed(name=part, source=at, dtype="float64") for at, part in enumerate(parts))
        inputs = (ColumnSpec(name="at", dtype="int64"),)
        _dates.append(TransformPlan(inputs=inputs, indexes=(), steps=steps, columns=tuple(columns)))
    assert_native_is_the_same(_dates[0], {"at": np.array(times).reshape(-1, 1)})


_dates: list[TransformPlan] = []
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


@pytest.mark.parametrize("function", ["add", "subtract", "multiply", "divide", "remainder"])
@pytest.mark.parametrize("left", DTYPES)
def test_arithmetic_has_numpys_dtypes_and_bits(function: str, left: str) -> None:
    rights = [dtype for dtype in DTYPES if (left, dtype) != ("bool", "bool")]
    operands: list[int | float] = [3, -7, 2.5, 0] if left.startswith(("int", "float")) else [3, 0, 2.5]
    calls = [StepCall(step=Arithmetic(function=function), inputs=("left", right)) for right in rights]
    calls += [StepCall(step=Arithmetic(function=function, operand=operand), inputs=("left",)) for operand in operands]
    rng = np.random.default_rng(0)
    drawn = {
        dtype: rng.integers(-(2**63), 2**63, (64, 1)).astype(dtype)
        if dtype not in ("bool", "float32", "float64")
        else (rng.normal(size=(64, 1)) * 100).round(1).astype(dtype)
        for dtype in DTYPES
    }
    with np.errstate(all="ignore"):
        results = [call.run(*_vectors(call, left, drawn)) for call in calls]
    transform = TransformPlan(
        inputs=(ColumnSpec(name="left", dtype=left), *(ColumnSpec(name=dtype, dtype=dtype) for dtype in DTYPES)),
        indexes=(),
        steps=tuple(calls),
        columns=tuple(
            Computed(name=f"made {at}", source=at, dtype=made.values.dtype.name)  # type: ignore[union-attr]
            for at, made in enumerate(results)
        ),
    )
    assert_native_is_the_same(transform, {"left": drawn[left], **drawn})


def _vectors(call: StepCall, left: str, drawn: dict[str, Any]) -> list[Any]:
    from rankline.workflows.plan.columns import Vector

    return [Vector(drawn[left if name == "left" else str(name)].reshape(-1)) for name in call.inputs]


def damaged(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        document = json.loads((directory / "plan.json").read_text())
        change(document)
        (directory / "plan.json").write_text(json.dumps(document))

    return write


def cut_short(directory: Path) -> None:
    path = next(directory.glob("array-*.arrow"))
    path.write_bytes(path.read_bytes()[:200])


def linked(directory: Path) -> None:
    (directory / "array-0.arrow").rename(directory.parent / "elsewhere.arrow")
    (directory / "array-0.arrow").symlink_to(directory.parent / "elsewhere.arrow")


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no file": (lambda directory: (directory / "plan.json").unlink(), "cannot be read"),
    "another version": (damaged(lambda plan: plan.update(format_version=99)), "format version 99, expected 3"),
    "an unknown step": (
        damaged(lambda plan: plan["steps"][1]["step"].update(kind="Run")),
        "unknown kind of step 'Run'",
    ),
    "a later result": (damaged(lambda plan: plan["steps"][1].update(inputs=[4])), "4 is not an earlier result"),
    "another directory": (
        damaged(lambda plan: plan["indexes"][0]["rows"].update(array_file="../array-0.arrow")),
        "is not the name of a file in the plan's directory",
    ),
    "a wrong shape": (
        damaged(lambda plan: plan["columns"][0]["values"].update(shape=[2**61])),
        "does not have the size",
    ),
    "a file cut short": (cut_short, "array-"),
    "a link": (linked, "cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_plan_is_refused_when_it_is_loaded(damage: str, tmp_path: Path) -> None:
    change, said = DAMAGES[damage]
    PLAN.save(tmp_path / "plan")
    change(tmp_path / "plan")
    with pytest.raises(ArtifactError, match=r"plan.json cannot be read \(.*Export again") as error:
        open_native(tmp_path / "plan", plan=PLAN)
    assert said in str(error.value)


def test_row_that_a_table_does_not_have_is_an_error_and_no_read_past_its_end(tmp_path: Path) -> None:
    plan(Column(name="user", index=0, values=np.arange(2))).save(tmp_path / "plan")
    with pytest.raises(ArtifactError, match="refers to rows 0 to 6 of column 'user', which has 2"):
        TransformPlan.load(tmp_path / "plan")
    with pytest.raises(RuntimeError, match="a row that its table does not have"):  # which it sees by itself
        open_native(tmp_path / "plan", plan=PLAN)(REQUEST)


@pytest.mark.slow
def test_native_plan_stays_within_buffers(tmp_path: Path) -> None:
    cast = StepCall(step=Cast(dtype="int32"), inputs=("price",))
    whole = plan()
    lists = (
        StepCall(step=Slice(start=-2, end=9, width=2), inputs=(2,)),
        StepCall(step=Pad(width=3, value=0), inputs=(5,)),
    )
    others = TransformPlan(
        inputs=whole.inputs,
        indexes=whole.indexes,
        steps=(*whole.steps, *lists, cast),
        columns=(Computed(name="history", source=6, dtype="int64", width=ANY_WIDTH), whole.columns[0]),
    )
    whole.save(tmp_path / "whole")
    others.save(tmp_path / "others")
    done = subprocess.run(
        [sanitized(FUZZ, "plan"), "1", "600", "3", tmp_path / "whole", tmp_path / "others"],
        env={"ASAN_OPTIONS": "allocator_may_return_null=1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    became = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert min(int(became[what]) for what in ("answered", "refused", "loaded", "refused to load")) > 20


ARCHIVE = Path(__file__).parents[3] / "golden/stacked_plans.tar.xz"
CASES = ("criteo", "hashed", "thresholds_and_buckets")
"""Normalised numbers, and codes by vocabulary; buckets by hash; vocabularies with several ids for unknown codes."""


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("golden")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    return directory / ARCHIVE.name.removesuffix(".tar.xz")


def request_and_answer(plans: Path, case: str) -> tuple[dict[str, Any], dict[str, Any]]:
    with np.load(plans / f"{case}.npz") as saved:
        arrays = {name: array.astype(object) if array.dtype.kind == "S" else array for name, array in saved.items()}
    return tuple(  # type: ignore[return-value]
        {name[len(side) :]: array for name, array in arrays.items() if name.startswith(side)}
        for side in ("in:", "out:")
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("runtime", ["python", "native"])
def test_stacked_plan_gives_the_scores_of_when_it_was_saved(plans: Path, case: str, runtime: str) -> None:
    request, answer = request_and_answer(plans, case)
    call = open_native(plans / case) if runtime == "native" else tensor_call(TransformPlan.load(plans / case))
    made = call(request)
    assert made.keys() == answer.keys()
    for name, expected in answer.items():
        assert made[name].dtype == expected.dtype
        np.testing.assert_array_equal(made[name].reshape(expected.shape), expected, name)


def test_unknown_keys_of_a_stack_are_found(plans: Path) -> None:
    request, _ = request_and_answer(plans, "criteo")
    known = {name: array[:1] for name, array in request.items()}
    known |= {"C0": np.array([[b"fffffff"]], object), "C0__valid": np.array([[True]])}
    assert "C0" in unknown_columns(TransformPlan.load(plans / "criteo"), known)


def damaged_stack(plans: Path, target: Path, case: str, change: Any) -> Path:
    shutil.copytree(plans / case, target / "plan")
    damaged(change)(target / "plan")
    return target / "plan"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan["columns"][0].update(stack=7), "a column refers to a missing stack"),
        (lambda plan: plan["stacks"][1]["steps"][1]["missing"].update(shape=[2, 2]), "does not have the size"),
        (
            lambda plan: plan["stacks"][1]["steps"][1].update(
                first_hashes=plan["stacks"][1]["steps"][1]["first_starts"],
                first_starts=plan["stacks"][1]["steps"][1]["first_hashes"],
            ),
            "an index",
        ),
    ],
)
def test_damaged_stack_is_refused_in_cpp(plans: Path, tmp_path: Path, change: Any, message: str) -> None:
    whole = TransformPlan.load(plans / "criteo")
    with pytest.raises(ArtifactError, match=rf"plan.json cannot be read \(.*{message}.*Export again"):
        open_native(damaged_stack(plans, tmp_path, "criteo", change), plan=whole)


def test_similarity_of_before_is_refused_with_what_to_do(plans: Path, tmp_path: Path) -> None:
    def change(plan: dict[str, Any]) -> None:
        plan["steps"] = [{"kind": "StepCall", "step": {"kind": "Similarity"}, "inputs": ["I0", "I1"]}]

    plan = damaged_stack(plans, tmp_path, "criteo", change)
    for load in (TransformPlan.load, lambda path: open_native(path, plan=TransformPlan.load(plans / "criteo"))):
        with pytest.raises(ArtifactError, match="ColumnSimilarity is no longer compiled. Export with --uncompiled Col"):
            load(plan)
