"""Numbers and codes that go through several steps, as Criteo's do."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.operators import Categorify, Finite, HashedCategorify, HashShare, HexToInt
from rankline.workflows.plan import TransformPlan
from tests.oracles.lowering import EXAMPLES, assert_same, assert_zero_rows, fitted, typed

NUMBERS = [f"I{number}" for number in range(5)]
FLOATS = [f"F{number}" for number in range(4)]
CODES = [f"C{number}" for number in range(6)]
HEX = st.sampled_from(["68fd1e64", "0f", "0F", "a", "ffffffff", "no", "", None]) | st.from_regex(
    r"[0-9a-f]{8}", fullmatch=True
)
VALUES: dict[str, Any] = {
    **dict.fromkeys(NUMBERS, st.integers(-3, 1000) | st.sampled_from([2**31, 2**53, -(2**40)]) | st.none()),
    **dict.fromkeys(FLOATS, st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.5])),
    **dict.fromkeys(CODES, HEX),
}
DTYPES = {**dict.fromkeys(NUMBERS, "float64"), **dict.fromkeys(FLOATS, "float32")}
NORMALIZED = [ops.FillMissing, lambda: ops.Clip(min_value=0), ops.LogOp, ops.Normalize, Finite]


def training_rows(num_rows: int = 200) -> pd.DataFrame:
    """Integers with nothing missing, so that a plan takes integers; codes whose vocabularies differ in size."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {name: rng.lognormal(2, 2, num_rows).astype(np.int64) for name in NUMBERS}
    columns |= {name: rng.normal(0, 3, num_rows).astype(np.float32) for name in FLOATS}
    for size, name in zip((3, 10, 30, 60, 100, 150), CODES, strict=True):
        codes = ["68fd1e64", "0f", None, *(f"{code:08x}" for code in rng.integers(0, 2**32, size))]
        columns[name] = [codes[i] for i in rng.integers(0, len(codes), num_rows)]
    return typed(columns, {**DTYPES, **dict.fromkeys(NUMBERS, "int64")})


def normalized(names: list[str]) -> Any:
    node: Any = names
    for make in NORMALIZED:
        node = node >> make()
    return node


GRAPHS: dict[str, Any] = {
    "criteo": lambda: normalized(NUMBERS) + (CODES >> HexToInt() >> Categorify()),
    "thresholds and buckets": lambda: (
        normalized(FLOATS) + (CODES >> HexToInt() >> HashedCategorify(num_buckets=3, freq_threshold=5))
    ),
    "hashed": lambda: (NUMBERS >> ops.FillMissing(7) >> ops.LogOp()) + (CODES >> HexToInt() >> HashShare(50)),
    "hex alone": lambda: CODES >> HexToInt(),
    "integers": lambda: NUMBERS >> ops.FillMissing(-1) >> ops.Clip(max_value=100),
}


@pytest.fixture(scope="module", params=GRAPHS)
def case(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[nvt.Workflow, TransformPlan]:
    return fitted(tmp_path_factory.mktemp("workflow"), training_rows(), GRAPHS[request.param])


def test_zero_rows(case: tuple[nvt.Workflow, TransformPlan]) -> None:
    assert_zero_rows(case[1])


@EXAMPLES
@given(st.data())
def test_chains_equal_nvtabular(case: tuple[nvt.Workflow, TransformPlan], data: st.DataObject) -> None:
    workflow, plan = case
    names = workflow.input_schema.column_names
    rows = data.draw(st.lists(st.tuples(*(VALUES[name] for name in names)), min_size=1, max_size=8))
    request = typed({name: [row[i] for row in rows] for i, name in enumerate(names)}, DTYPES)
    assert_same(workflow, plan, request, widened=True)


def test_rows_of_training_get_their_ids_however_many(case: tuple[nvt.Workflow, TransformPlan]) -> None:
    workflow, plan = case
    assert_same(workflow, plan, training_rows()[workflow.input_schema.column_names])
