from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from rankline.training.models.auto import target_statistics
from rankline.training.models.auto.target_statistics import TargetStatistics
from rankline.workflows.onnx.graph import Graph
from tests.factories.training.tables import TASKS, table_rows


def test_few_rows_have_no_statistics() -> None:
    rows = table_rows("binary")
    assert TargetStatistics(rows).of(rows.matrix).shape == (300, 0)
    assert TargetStatistics(rows).of_learned(rows).shape == (300, 0)


@pytest.fixture
def _any_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_statistics, "_MIN_ROWS", 0)


@pytest.mark.usefixtures("_any_number_of_rows")
@pytest.mark.parametrize("task", TASKS)
def test_statistics_are_shrunk_means_of_each_class_also_in_onnx(task: str) -> None:
    rows = table_rows(task)
    made = TargetStatistics(rows).of(rows.matrix)
    assert made.shape == (300, 2 * rows.head.width)
    same = rows.matrix[:, 1] == rows.matrix[0, 1]
    expected = (rows.targets[same].sum(0) + 10 * rows.targets.mean(0)) / (same.sum() + 10)
    np.testing.assert_allclose(made[0, rows.head.width :], expected, rtol=1e-6)
    graph = Graph()
    name = TargetStatistics(rows).add_to(graph, graph.take("rows", TensorProto.FLOAT, 4))
    assert name
    graph.give(name, made.shape[1])
    session = onnxruntime.InferenceSession(graph.model("statistics").SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"rows": rows.matrix})[0], made)


@pytest.mark.usefixtures("_any_number_of_rows")
def test_id_without_rows_gets_the_mean_of_all_rows() -> None:
    rows = table_rows("regression")
    asked = rows.matrix[:3].copy()
    asked[:, 1] = [1, 2, 39]  # null, unseen, and an id of the vocabulary without training rows
    made = TargetStatistics(rows).of(asked)
    np.testing.assert_allclose(made[:, 1], rows.labels.mean(), rtol=1e-6)


@pytest.mark.usefixtures("_any_number_of_rows")
def test_own_label_does_not_reach_the_statistics_that_a_row_is_learned_with() -> None:
    rows = table_rows("regression", groups=np.arange(300))  # folds by group do not depend on labels
    before = TargetStatistics(rows).of_learned(rows)
    for number in (0, 150, 299):
        labels = rows.labels.copy()
        labels[number] += 1e6
        changed = replace(rows, labels=labels)
        after = TargetStatistics(changed).of_learned(changed)
        np.testing.assert_array_equal(after[number], before[number])
        assert (after != before).any()


@pytest.mark.usefixtures("_any_number_of_rows")
def test_statistics_in_order_come_from_earlier_rows_only() -> None:
    rows = table_rows("regression", in_order=True)
    labels = rows.labels.copy()
    labels[200:] += 1e6
    changed = replace(rows, labels=labels)
    before, after = (TargetStatistics(some).of_learned(some) for some in (rows, changed))
    np.testing.assert_array_equal(after[30:200], before[30:200])
    assert (after[270:] > before[270:] + 1e3).any()
