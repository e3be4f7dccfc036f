"""What is written beside scores."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from rankline.scoring.write_scores import scores_to, without_formulas

FORMULAS = ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3+cmd()", "-1e5+cmd()", "\t=1", "-", "+", "-30-"]
PLAIN = ["-5", "+1.5", "-1e-3", "a=b", "", "1-2", "'=1", None, "é"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_a_spreadsheet_runs_no_text_of_a_csv(kind: pa.DataType) -> None:
    rows = pa.table({"=name": pa.array(FORMULAS + PLAIN).cast(kind)})
    shown = without_formulas(rows)
    assert shown.column_names == ["'=name"]
    assert shown.column(0).to_pylist() == [f"'{text}" for text in FORMULAS] + PLAIN


def test_a_csv_of_scores_has_no_formula_and_its_numbers(tmp_path) -> None:
    rows = pa.table({"title": ["=1+1", "plain"], "x": [-1, 2]})
    with scores_to(tmp_path / "out.csv", "csv") as write:
        for _ in range(2):
            write(rows, {"score": np.array([-0.5, 0.25])})
    found = csv.read_csv(tmp_path / "out.csv").to_pydict()
    assert found == {"title": ["'=1+1", "plain"] * 2, "x": [-1, 2] * 2, "score": [-0.5, 0.25] * 2}
