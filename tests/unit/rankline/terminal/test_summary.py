"""What `run` and `train` print about the models that `auto` compared."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankline.report.run_page import RunReport
from rankline.terminal.summary import print_comparison, print_summary
from tests.factories.ensembles import publish_tiny
from tests.factories.recorders import printed
from tests.factories.reports import report_of, result_of

COMPARED = {
    "metric": "auc",
    "reason": "linear: AUC 0.8000 on held-out training rows",
    "candidates": [
        {"name": "linear", "score": 0.8, "spread": 0.01, "weight": 1.0, "problem": ""},
        {"name": "realmlp", "score": None, "spread": None, "weight": 0.0, "problem": "no time was left"},
    ],
}


@pytest.fixture
def trained() -> Any:
    return SimpleNamespace(manifest=SimpleNamespace(details={"compared": COMPARED}))


def test_summary_of_a_run_says_which_models_were_left_out(trained: Any, tmp_path: Path) -> None:
    ensemble = publish_tiny(tmp_path, 1)
    result: Any = SimpleNamespace(
        recipe=SimpleNamespace(name="shop"),
        ensemble=ensemble,
        trained=trained,
        quality=SimpleNamespace(per_seed={0: {}}),
        workspace=SimpleNamespace(report=tmp_path / "report.html"),
    )
    report = RunReport(ensemble=ensemble, bench=report_of(result_of()))
    text = printed(partial(print_summary, result, report), 120)
    assert "realmlp was left out: no time was left" in text
    assert "chosen: linear: AUC 0.8000" in text


def test_comparison_has_the_title_of_the_metric_and_says_what_was_left_out(trained: Any) -> None:
    text = printed(partial(print_comparison, trained))
    assert "AUC " in text.split("linear")[0]
    assert "realmlp was left out: no time was left" in text
