from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.report.analysis import Analysis, analyze
from rankline.training.evaluation import quality
from rankline.workflows.preprocess.prepared_data import PreparedData
from tests.unit.rankline.report.conftest import CONFIG, prepare_rows, score


@pytest.fixture(scope="module")
def rows(prepared: PreparedData) -> pa.Table:
    return prepared.heldout()


@pytest.fixture(scope="module")
def found(prepared: PreparedData, rows: pa.Table) -> Analysis:
    return analyze(prepared, rows, rows["bought"].to_numpy(), score(rows), score)


def test_shuffling_a_column_costs_what_the_model_needs_of_it(found: Analysis) -> None:
    losses = {column.name: column.loss for column in found.columns}
    assert [column.name for column in found.columns][:2] == ["amount", "kind"]
    assert losses["amount"] is not None
    assert losses["amount"] > 0.2
    assert losses["noise <b>"] == losses["user"] == 0


def test_columns_are_described(found: Analysis, rows: pa.Table) -> None:
    columns = {column.name: column for column in found.columns}
    assert found.num_columns == len(columns) == 4
    assert columns["kind"].num_distinct == 3
    assert columns["kind"].role == "category"
    assert columns["amount"].share_missing == pytest.approx(np.isnan(rows["amount"].to_numpy()).mean())
    assert columns["user"].role == "user or group id"


def test_baseline_is_the_best_single_column(found: Analysis, rows: pa.Table) -> None:
    assert found.baseline is not None
    assert found.baseline.column == "amount"
    assert 0.6 < found.baseline.figure < quality(rows["bought"].to_numpy(), score(rows))["auc"] + 0.02


def test_baseline_has_the_name_of_the_column_in_the_data(tmp_path: Path) -> None:
    noise = CONFIG.columns["noise <b>"]
    made = prepare_rows(tmp_path, replace(CONFIG, columns={"noise <b>": noise}, group=None))
    rows = made.heldout()
    scores = np.full(len(rows), 0.5)
    found = analyze(made, rows, rows["bought"].to_numpy(), scores, lambda some: scores[: len(some)])
    assert found.baseline is not None
    assert found.baseline.column == "noise <b>"


def test_parts_cover_the_rows_and_have_intervals(found: Analysis, rows: pa.Table) -> None:
    assert {"By user", "By kind"} <= found.parts.keys()
    for title in ("By user", "By kind"):
        assert sum(part.num_rows for part in found.parts[title]) == len(rows)
    (part,) = (part for part in found.parts["By kind"] if part.name == "kind is a")
    labels, is_a = rows["bought"].to_numpy(), np.array(rows["kind"].to_pylist()) == "a"
    assert part.figure == pytest.approx(quality(labels[is_a], score(rows)[is_a])["auc"])
    low, high = part.bounds
    assert low < part.figure < high
    names = [part.name for part in found.parts["By user"]]
    assert names[0] == "no training rows"
    assert names[-1] == "100 or more training rows"


def test_rows_of_rare_or_missing_users_are_no_active_ones(tmp_path: Path) -> None:
    rare = replace(CONFIG.columns["user"], frequency_threshold=10_000)
    made = prepare_rows(tmp_path, replace(CONFIG, columns={**CONFIG.columns, "user": rare}), lacks_users=0.4)
    rows = made.heldout()
    found = analyze(made, rows, rows["bought"].to_numpy(), score(rows), score)
    missing = rows["user"].null_count
    parts = [(part.name, part.num_rows) for part in found.parts["By user"]]
    assert parts == [("new or rare", len(rows) - missing), ("user is missing", missing)]


def test_rows_whose_value_is_missing_are_a_part(prepared: PreparedData, rows: pa.Table) -> None:
    number = np.arange(len(rows))
    for values in (
        pa.array(np.where(number % 3 == 0, "a", "b"), mask=number % 3 == 2),
        pa.array(np.choose(number % 3, [1.0, 2.0, np.nan])),
    ):
        changed = rows.set_column(rows.schema.get_field_index("kind"), "kind", values)
        found = analyze(prepared, changed, rows["bought"].to_numpy(), score(rows), lambda _: score(rows))
        *_, last = parts = found.parts["By kind"]
        assert (last.name, last.num_rows) == ("kind is missing", (number % 3 == 2).sum())
        assert sum(part.num_rows for part in parts) == len(rows)


@pytest.mark.parametrize("buckets", [0, 3])
def test_rare_users_share_no_part_with_active_ones(tmp_path: Path, buckets: int) -> None:
    user = replace(CONFIG.columns["user"], frequency_threshold=4, hash_buckets=buckets)
    made = prepare_rows(tmp_path, replace(CONFIG, columns={**CONFIG.columns, "user": user}))
    rows = made.heldout()
    found = analyze(made, rows, rows["bought"].to_numpy(), score(rows), score)
    trained = Counter(pq.read_table(tmp_path / "rows.parquet")["user"].to_pylist())
    trained.subtract(rows["user"].to_pylist())
    known = np.array([trained[one] for one in rows["user"].to_pylist()])
    parts = {part.name: part.num_rows for part in found.parts["By user"]}
    assert parts["new or rare"] == (known < 4).sum()
    assert parts["1 to 9 training rows"] == ((known >= 4) & (known < 10)).sum()
    of_known = [part.num_rows for part in found.parts["By values known to the model"]]
    assert of_known == [(known >= 4).sum(), (known < 4).sum()]
    groups = made.heldout_groups(len(rows))
    assert groups is not None
    assert len(set(groups)) == len(set(rows["user"].to_pylist()))


def test_single_class_leaves_the_rest(prepared: PreparedData, rows: pa.Table) -> None:
    found = analyze(prepared, rows, np.ones(len(rows)), score(rows), score)
    assert all(column.loss is None for column in found.columns)
    assert found.baseline is None
    assert found.whole is not None
    assert np.isnan(found.whole.figure)


def test_first_of_many_columns_are_measured(prepared: PreparedData, rows: pa.Table) -> None:
    names = tuple(f"column {number}" for number in range(2_000))
    wide = pa.table({**dict.fromkeys(names, rows["amount"]), "bought": rows["bought"]})
    metadata = replace(prepared.spec.metadata, inputs=names)
    many = replace(prepared, spec=replace(prepared.spec, metadata=metadata))
    found = analyze(many, wide, rows["bought"].to_numpy(), score(rows), lambda _: score(rows))
    assert (len(found.columns), found.num_columns) == (50, 2_000)
