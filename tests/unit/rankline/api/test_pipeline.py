"""What the stages of the pipeline report."""

import numpy as np
import pyarrow as pa
import pytest

from rankline.api.pipeline import _describe_quality, _rounding
from rankline.workflows.schema.targets import Head


@pytest.mark.parametrize(("second", "is_constant"), [(0.75, True), (0.76, False)])
def test_seed_without_an_effect_is_reported(second: float, is_constant: bool) -> None:
    metrics = {seed: {"valid_auc": auc} for seed, auc in enumerate((0.75, second))}
    said = _describe_quality([Head("label")], metrics)
    assert " over 2 seeds" in said
    assert ("the seed has no effect on this model" in said) == is_constant


def test_rounding_is_how_much_a_score_depends_on_its_batch() -> None:
    def predict(rows: pa.Table) -> np.ndarray:
        return rows["n"].to_numpy() + (2e-5 if len(rows) > 1 else 0.0)

    rows = pa.table({"n": np.linspace(0, 1, 100)})
    assert _rounding(predict, rows, predict(rows)) == pytest.approx(2e-5)
    assert _rounding(predict, rows.slice(0, 0), np.empty(0)) == 0
