import numpy as np
import pytest

from rankline.training.models.auto.rows import fold_numbers, folds
from tests.factories.training.tables import TASKS, table_rows


@pytest.mark.parametrize("task", TASKS)
def test_folds_hold_out_each_row_once_and_learn_from_all_others(task: str) -> None:
    rows = table_rows(task, 103)
    made = folds(rows, 5)
    assert sorted(np.concatenate([held for _, held in made])) == list(range(103))
    for learned, held in made:
        assert sorted([*learned, *held]) == list(range(103))
        assert len(held) in (20, 21)


def test_folds_have_equal_shares_of_each_class() -> None:
    rows = table_rows("multiclass", 500)
    for number in range(5):
        counts = np.bincount(rows.labels[fold_numbers(rows, 5) == number].astype(int), minlength=3)
        np.testing.assert_allclose(counts, np.bincount(rows.labels.astype(int)) / 5, atol=1)


def test_folds_keep_groups_together() -> None:
    groups = np.arange(200) % 17
    numbers = fold_numbers(table_rows("binary", 200, groups=groups), 5)
    assert all(len(set(numbers[groups == group])) == 1 for group in range(17))
    assert set(numbers) == set(range(5))


def test_folds_in_order_learn_from_earlier_rows_only() -> None:
    made = folds(table_rows("regression", 100, in_order=True), 5)
    assert [held.tolist() for _, held in made] == [list(range(n, n + 20)) for n in (20, 40, 60, 80)]
    assert [learned.tolist() for learned, _ in made] == [list(range(n)) for n in (20, 40, 60, 80)]


def test_fold_whose_other_rows_have_one_label_is_left_out() -> None:
    rows = table_rows("binary", 100, in_order=True)
    rows.labels[:50] = 0
    rows.labels[50:] = np.arange(50) % 2
    assert [len(learned) for learned, _ in folds(rows, 5)] == [60, 80]
