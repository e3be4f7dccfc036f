import numpy as np
import pytest

from rankline.training.distributed.communicator import Array
from rankline.training.evaluation.cards import learning_curve, quality_cards
from rankline.training.evaluation.scored_rows import ScoredRows
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head
from tests.factories.pages import ParsedPage

RNG = np.random.default_rng(5)
CLICKED, PRICE = Head("clicked"), Head("price", REGRESSION)
KIND = Head("kind", MULTICLASS, classes=tuple("ab<"))
MANY = Head("kind", MULTICLASS, classes=tuple(f"class {number}" for number in range(1_000)))
CASES = {
    "binary": (CLICKED, RNG.integers(0, 2, 500), RNG.random(500), ("ROC", "Calibration", "Scores by label")),
    "one class": (CLICKED, np.ones(20), RNG.random(20), ("ROC",)),
    "one score": (CLICKED, np.array([0, 1, 1]), np.full(3, 0.5), ("Calibration",)),
    "one row": (PRICE, np.ones(1), np.zeros(1), ("Errors",)),
    "constant": (PRICE, np.full(9, 5e9), np.full(9, 5e9), ("Predictions",)),
    "regression": (PRICE, RNG.normal(size=500), RNG.normal(size=500), ("Predictions", "Errors", "Bias")),
    "classes": (
        *(KIND, RNG.integers(0, 3, 500), RNG.dirichlet(np.ones(3), 500)),
        ("Confusion matrix", "Calibration", "Confidence"),
    ),
    "many classes": (MANY, RNG.integers(0, 1_000, 500), RNG.random((500, 1_000)), ("Confusion matrix",)),
}


@pytest.mark.parametrize("case", CASES)
def test_each_task_has_its_charts(case: str) -> None:
    head, labels, scores, titles = CASES[case]
    cards = list(quality_cards(head, {"": ScoredRows.of(labels.astype(np.float32), scores.astype(np.float32))}))
    assert set(titles) <= {card.title for card in cards}
    for card in cards:
        ParsedPage(card.content)
        assert len(card.content) < 30_000
        assert "nan" not in card.content


def rows(signal: float) -> ScoredRows:
    labels: Array = RNG.integers(0, 2, 2_000)
    return ScoredRows.of(labels, 1 / (1 + np.exp(-RNG.normal(size=2_000) - signal * labels)))


def test_curves_of_two_models_are_drawn_over_each_other() -> None:
    roc, *_ = quality_cards(CLICKED, {"before": rows(1.0), "after": rows(2.0)})
    page = ParsedPage(roc.content)
    assert "before" in page.text
    assert "after" in page.text


def test_titles_name_the_label_if_there_are_several() -> None:
    titles = [card.title for card in quality_cards(CLICKED, {"": rows(1.0)}, 2)]
    assert titles == ["clicked: ROC", "clicked: Calibration", "clicked: Scores by label"]


def test_confusion_matrix_shows_shares_of_the_true_class() -> None:
    labels, said = np.array([0, 0, 0, 1, 2]), np.array([0, 0, 1, 1, 2])
    matrix, *_ = quality_cards(KIND, {"": ScoredRows.of(labels, np.eye(3)[said])})
    page = ParsedPage(matrix.content)
    assert [text for text in ("67%", "33%", "100%") if text in page.text] == ["67%", "33%", "100%"]


def test_large_confusion_matrix_says_what_it_leaves_out() -> None:
    head, labels, scores, _ = CASES["many classes"]
    matrix, *_ = quality_cards(head, {"": ScoredRows.of(labels, scores)})
    assert "The 25 most frequent of 1,000 classes are shown" in matrix.note


def test_learning_curve_marks_the_epoch_that_was_kept() -> None:
    curves = {"held-out rows": [(1, 0.6), (2, 0.5), (3, 0.55)], "training rows": [(1, 0.7), (2, 0.5), (3, 0.4)]}
    card = learning_curve("logloss", curves, 2, chosen_by="AUC")
    page = ParsedPage(card.content)
    assert card.note.endswith("choose the epoch by their AUC.")
    assert "epoch 2 kept" in page.text
    assert "training rows" in page.text


@pytest.mark.parametrize("curves", [{}, {"validation rows": [(1.0, 0.5)]}])
def test_single_epoch_has_no_curve_and_says_so(curves: dict[str, list[tuple[float, float]]]) -> None:
    card = learning_curve("logloss", curves, 1)
    assert card.content == ""
    assert "single epoch" in card.note
