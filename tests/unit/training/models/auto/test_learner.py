"""What holds for every learner."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from rankline.training.models.auto import realmlp, trees
from rankline.training.models.auto.learner import Deadline, Learner, LearnerError, error_of
from rankline.training.models.auto.portfolio import _LEARNERS
from rankline.training.models.auto.rows import folds
from rankline.workflows.onnx.graph import Graph
from tests.factories.training.tables import TASKS, table_rows

MAX_ERRORS = {"binary": 0.1, "regression": 12.0, "multiclass": 0.7}
"""1 - AUC, RMSE and logloss; of the mean they are 0.5, 20 and 1.1."""


@pytest.fixture(autouse=True)
def _small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees.LightGBM, "_MAX_TREES", 150)
    for name, value in {
        "_HIDDEN": (16, 16),
        "_MIN_STEPS": 200,
        "_MAX_STEPS": 200,
        "_NUM_CHECKS": 2,
        "_IS_COMPILED": False,
    }.items():
        monkeypatch.setattr(realmlp, name, value)


@pytest.fixture(params=_LEARNERS.values(), ids=list(_LEARNERS))
def learner(request: pytest.FixtureRequest) -> Learner:
    return request.param()  # type: ignore[no-any-return]


@pytest.mark.parametrize("task", TASKS)
def test_learner_generalizes_and_its_graph_returns_its_scores(learner: Learner, task: str) -> None:
    rows = table_rows(task)
    held_out = learner.held_out_scores(rows, folds(rows, 3), Deadline.after(1e6))
    assert held_out.shape == (300, rows.head.width)
    assert error_of(rows.head, rows.labels, held_out) < MAX_ERRORS[task]
    fitted = learner.fit(rows)
    asked = table_rows(task, 200, seed=1)
    asked.matrix[:4, 0], asked.matrix[:4, 1] = [1, 2, 6, 3], [1, 2, 39, 3]  # also ids without training rows
    asked.matrix[4:6, 2:] = [[1e9, -1e9], [-1e30, 1e30]]
    scores = fitted.scores(asked.matrix)
    assert error_of(rows.head, asked.labels[6:], scores[6:]) < MAX_ERRORS[task]
    assert fitted.num_parameters > 0
    graph = Graph()
    graph.give(fitted.add_to(graph, graph.take("rows", TensorProto.FLOAT, 4)), rows.head.width)
    session = onnxruntime.InferenceSession(graph.model("learner").SerializeToString())
    made = session.run(None, {"rows": asked.matrix})[0]
    np.testing.assert_allclose(made, scores, rtol=1e-4, atol=2e-6)
    assert np.isfinite(made).all()


def test_learner_takes_rows_of_numbers_or_ids_alone(learner: Learner) -> None:
    rows = table_rows("binary", 120)
    for columns, num_ids in ((slice(2, 4), {}), (slice(0, 2), rows.num_ids)):
        part = type(rows)(matrix=rows.matrix[:, columns], labels=rows.labels, head=rows.head, num_ids=num_ids)
        scores = learner.fit(part).scores(part.matrix)
        assert error_of(rows.head, rows.labels, scores) < 0.45


def test_same_rows_give_the_same_model(learner: Learner) -> None:
    rows = table_rows("regression", 150)
    first, second = (type(learner)().fit(rows).scores(rows.matrix) for _ in range(2))
    np.testing.assert_allclose(first, second, rtol=1e-5)


@pytest.mark.parametrize("name", ["lightgbm", "catboost", "realmlp"])
def test_learner_that_takes_long_stops_at_the_deadline(name: str) -> None:
    rows = table_rows("binary", 100)
    with pytest.raises(LearnerError):
        _LEARNERS[name]().held_out_scores(rows, folds(rows, 3), Deadline.after(0))
