"""What the tests of lowerings share: fit a graph, ask NVTabular and the compiled plan the same, compare bit by bit."""

import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import Phase
from hypothesis import strategies as st

from rankline.workflows.compiler.compile import compile_workflow
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in
from rankline.workflows.plan import TransformPlan
from rankline.workflows.schema.ragged import Padded
from tests.examples import examples
from tests.oracles.native_plan import assert_native_is_the_same, wire_tensors

# An example asks NVTabular, which takes some 10 ms; to shrink one takes minutes.
EXAMPLES = examples(1 / 4, phases=[Phase.explicit, Phase.reuse, Phase.generate])
EXTREME = [2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63)]
KEYS = st.integers(-3, 12) | st.sampled_from(EXTREME)
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, 1.5, 2.5, float("nan"), 1e300, -3.25])
FLOATS32 = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.5, float("nan")])
WORDS = st.sampled_from(["", "a", "b", "é", "日本", "a\0", "\0", "long " * 40]) | st.text(
    st.characters(blacklist_categories=("Cs",)), max_size=3
)
VALUES: dict[str, Any] = {
    "key": KEYS,
    "small": st.integers(0, 5),
    "narrow": st.integers(-128, 127),
    "flag": st.booleans(),
    "float": FLOATS,
    "float32": FLOATS32,
    "whole": st.sampled_from([0.0, 1.0, 2.0, 3.0, float("nan")]),
    "maybe": st.sampled_from([0.0, 1.0, 2.0, -7.0, float("nan")]),
    "price": st.floats(0, 100),
    "word": WORDS | st.none(),
    "other": st.sampled_from(["a", "b", "é", "", None]),
    "code": st.from_regex(r"[0-9a-fA-F]{1,16}", fullmatch=True)
    | st.sampled_from(["68fd1e64", "0F", " 1", "0x1"])
    | WORDS,
    "words": st.lists(WORDS | st.none(), max_size=4),
    "keys": st.lists(KEYS, max_size=4),
    "floats": st.lists(FLOATS, max_size=4),
}
"""What a request may hold, by column. `maybe` is fitted as int64: a request that lacks one is float64 in pandas."""

DTYPES = {
    "key": "int64",
    "small": "int64",
    "narrow": "int8",
    "flag": "bool",
    "float": "float64",
    "float32": "float32",
    "whole": "float64",
    "maybe": "float64",
    "price": "float64",
}


def training_rows(num_rows: int = 60) -> pd.DataFrame:
    """Rows to fit to: all columns of `VALUES`, each value several times, the first row with nothing missing."""
    rng = np.random.default_rng(0)
    words = ["a", "é", "日本", "b", "", "a\0", "long " * 40, None]

    def lists(values: list[Any]) -> list[list[Any]]:
        return [
            values[:1],
            *([values[i] for i in rng.integers(0, len(values), n)] for n in rng.integers(0, 5, num_rows - 1)),
        ]

    def choices(values: list[Any]) -> list[Any]:
        return [values[0], *(values[i] for i in rng.integers(0, len(values), num_rows - 1))]

    return typed(
        {
            "key": choices([1, 2, 3, -1, *EXTREME[:3], 2**62, -(2**62)]),
            "small": choices([0, 1, 2, 3]),
            "narrow": choices([1, -100, 20, 3]),
            "flag": choices([True, False]),
            "float": choices([1.5, float("nan"), -0.0, 0.0, 2.5, 1e300, -3.25]),
            "float32": choices([1.5, float("nan"), -0.0, 0.1, 2.5, -3.25]),
            "whole": choices([1.0, 2.0, float("nan")]),
            "maybe": choices([1, 2, 5]),
            "price": rng.random(num_rows),
            "word": choices(words),
            "other": choices(["a", "b", "é", None]),
            "words": lists(words),
            "keys": lists([1, 2, 3, 2**53 + 1]),
            "floats": lists([1.5, float("nan"), 2.0, -1.0]),
            "code": choices(["68fd1e64", "0f", "0F", "a", "fffffffffffffff", None, "no"]),
        },
        DTYPES | {"maybe": "int64"},
    )


def requests(workflow: nvt.Workflow, *, max_size: int = 10) -> st.SearchStrategy[pd.DataFrame]:
    """Requests of a workflow, one row of them from training: NVTabular cannot encode a batch that is missing whole."""
    names = workflow.input_schema.column_names
    first = training_rows()[names].iloc[:1]
    rows = st.lists(st.tuples(*(VALUES[name] for name in names)), max_size=max_size)
    return rows.map(
        lambda rows: typed({name: [*(row[i] for row in rows), first[name][0]] for i, name in enumerate(names)}, DTYPES)
    )


def typed(columns: dict[str, Any], dtypes: dict[str, str]) -> pd.DataFrame:
    """Columns of the dtypes; "object" where none is given."""
    return pd.DataFrame({n: pd.Series(list(values), dtype=dtypes.get(n, object)) for n, values in columns.items()})


def fitted(directory: Path, rows: pd.DataFrame, graph: Callable[[], Any]) -> tuple[nvt.Workflow, TransformPlan]:
    """A workflow that was fitted to rows, and the plan that it compiles to, saved and loaded."""
    with quiet_nvtabular():
        # Logarithms of negative numbers and the like, computed in threads of Dask's.
        warnings.filterwarnings("ignore", category=RuntimeWarning)
        workflow = nvt.Workflow(graph())
        keep_vocabularies_in(workflow, directory)
        workflow.fit(nvt.Dataset(rows))
    compile_workflow(workflow).save(directory / "plan")
    return workflow, TransformPlan.load(directory / "plan")


def schema_only(graph: Callable[[], Any]) -> TransformPlan:
    """The plan of a graph whose operators need no fit."""
    with quiet_nvtabular():
        return compile_workflow(nvt.Workflow(graph()).fit_schema(nvt.Dataset(training_rows()).schema))


def served(plan: TransformPlan, request: pd.DataFrame) -> dict[str, Any]:
    """The plan's answer: arrays, or lists of arrays. The C++ runtime gives the same."""
    assert_native_is_the_same(plan, wire_tensors(plan, request))
    inputs, valid = request_of(plan, request)
    return {name: unpadded(column) for name, column in plan.run(inputs, valid).items()}


def request_of(plan: TransformPlan, request: pd.DataFrame) -> tuple[dict[str, Any], dict[str, Any]]:
    """A frame as inputs of a plan, with masks for what a NumPy array cannot show as missing."""
    inputs, valid = {}, {}
    for spec in plan.inputs:
        series = request[spec.name]
        if spec.width is not None:
            inputs[spec.name] = padded([[] if row is None else row for row in series], spec.dtype)
            valid[spec.name] = np.array([row is not None for row in series], dtype=bool)
        elif spec.dtype == "object":
            inputs[spec.name] = np.array([None if pd.isna(value) else value.encode() for value in series], dtype=object)
        elif series.isna().any() and not spec.dtype.startswith("float"):
            inputs[spec.name] = series.fillna(0).to_numpy(spec.dtype)
            valid[spec.name] = series.notna().to_numpy()
        else:
            inputs[spec.name] = series.to_numpy(spec.dtype)
    return inputs, valid


def padded(lists: list[Any], dtype: str) -> Padded:
    lengths = np.array([len(row) for row in lists], dtype=np.int32)
    values = np.zeros((len(lists), max(lengths.max(initial=0), 1)), dtype=dtype)
    for row, elements in enumerate(lists):
        values[row, : len(elements)] = elements
    return Padded(values, lengths)


def unpadded(column: Any) -> Any:
    if not isinstance(column, Padded):
        return column
    lists = column.ragged()
    values, offsets = lists.values, lists.offsets
    return [values[a:b] for a, b in pairwise(offsets)]


def assert_same(workflow: nvt.Workflow, plan: TransformPlan, request: pd.DataFrame, *, widened: bool = False) -> None:
    """Ids, offsets and the bits of floats are identical.

    `widened`: NVTabular may hold the same numbers in a wider float, as pandas does where some are missing.
    """
    with quiet_nvtabular(), np.errstate(all="ignore"):
        expected = workflow.transform(request.copy())
    actual = served(plan, request)
    assert list(actual) == list(expected.columns)
    for name, column in actual.items():
        offline = expected[name]
        if isinstance(column, list):
            assert [len(row) for row in column] == [len(row) for row in offline], name
            for row, other in zip(column, offline, strict=True):
                assert_equal(name, row, np.asarray(other, dtype=row.dtype))
        elif widened and column.dtype != offline.dtype:
            assert offline.dtype == np.float64
            assert_equal(name, column, offline.to_numpy().astype(column.dtype))
        else:
            assert column.dtype == offline.dtype, name
            assert_equal(name, column, offline.to_numpy())


def assert_equal(name: str, actual: Any, expected: Any) -> None:
    """The same bits, but for the payload of NaN."""
    if actual.dtype.kind == "f":
        nan = np.isnan(actual)
        assert nan.tolist() == np.isnan(expected).tolist(), name
        actual, expected = actual[~nan], expected[~nan]
    assert actual.tobytes() == np.ascontiguousarray(expected).tobytes(), (name, actual, expected)


def assert_zero_rows(plan: TransformPlan) -> None:
    """Zero rows give zero rows, which NVTabular cannot; of the dtypes that the plan declares."""
    answer = plan.run({spec.name: spec.zeros(0) for spec in plan.inputs})
    for column in plan.columns:
        given = answer[column.name]
        values = given.values if isinstance(given, Padded) else given
        assert (len(values), values.dtype.name) == (0, column.spec.dtype)
