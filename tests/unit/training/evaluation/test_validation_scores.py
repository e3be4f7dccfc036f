from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rankline.training.evaluation.validation_scores import FILE, ValidationScores, scored_alike
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.schema.targets import BINARY, MULTICLASS, REGRESSION, Head

CLICKED, PRICE = Head("clicked"), Head("price", REGRESSION, mean=2.0, deviation=0.5)
KIND = Head("kind", MULTICLASS, classes=("a", "b", "c"))
RNG = np.random.default_rng(5)


@pytest.mark.parametrize("heads", [(CLICKED,), (PRICE,), (KIND,), (CLICKED, KIND, PRICE)])
def test_scores_come_back_as_they_were(heads: tuple[Head, ...], tmp_path: Path) -> None:
    labels = RNG.integers(0, 2, (50, len(heads))).astype(np.float32)
    labels[0, -1] = np.nan if len(heads) > 1 else 0
    scores = RNG.random((50, sum(head.width for head in heads))).astype(np.float32)
    narrow = [values[:, 0] if values.shape[1] == 1 else values for values in (labels, scores)]
    ValidationScores(heads=heads, labels=narrow[0], scores=narrow[1]).write(tmp_path)
    found = ValidationScores.read(tmp_path / FILE)
    assert found.heads == heads
    np.testing.assert_array_equal(found.labels, narrow[0])
    np.testing.assert_array_equal(found.scores, narrow[1])
    assert pq.read_table(tmp_path / FILE).column_names[:2] == [heads[0].column, f"{heads[0].column}_score"]


def test_file_without_scores_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"PAR1 and then nothing")
    with pytest.raises(ArtifactError, match=rf"{tmp_path}/scores\.parquet does not contain validation scores"):
        ValidationScores.read(tmp_path / FILE)


def test_heads_are_alike_that_learn_the_same() -> None:
    other_classes = Head("kind", MULTICLASS, classes=("a", "b"))
    assert scored_alike([CLICKED, PRICE, KIND], [Head("price", REGRESSION, mean=9.0), other_classes]) == [PRICE]
    assert scored_alike([CLICKED], [Head("clicked", BINARY, weight=2.0)]) == [CLICKED]
