import json
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.data.criteo.generator import CATEGORY_COUNTS, generate_criteo
from rankline.workflows.data.criteo.reader import CATEGORIES, NUMBERS, read_criteo
from tests.examples import examples

NUM_ROWS = 120_000
# Measured on 8,000 rows of Criteo.
MISSING = {
    "I1": 0.4515, "I2": 0.0, "I3": 0.2025, "I5": 0.0495, "I6": 0.2517, "I8": 0.0011, "I12": 0.7768,
    "C1": 0.0, "C3": 0.0331, "C6": 0.1309, "C19": 0.4529, "C22": 0.8173, "C26": 0.4529,
}  # fmt: skip


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    directory = tmp_path_factory.mktemp("generated")
    truth = generate_criteo(directory, num_rows=NUM_ROWS, seed=1, cardinality_scale=1.0)
    raw = read_criteo(directory)
    return directory, truth, raw, pa.Table.from_batches(raw.rows.batches())


def codes_of(table, name):
    """Number each distinct value of a category, missing ones together."""
    return table[name].fill_null("").combine_chunks().dictionary_encode().indices.to_numpy()


def shares_of(table, name):
    """Share of each value of a category among those that are there, largest first."""
    counts = np.sort(table[name].drop_null().value_counts().field("counts").to_numpy())[::-1]
    return counts / counts.sum()


def test_five_days_of_one_size_read_back_whole(generated):
    directory, _, raw, table = generated
    assert raw.rows.periods == (NUM_ROWS // 5,) * 5
    assert table.num_rows == NUM_ROWS
    assert sorted(path.name for path in directory.iterdir()) == [*(f"day_{day}" for day in range(5)), "truth.json"]


def test_missing_values_are_as_frequent_as_in_criteo_and_lacked_together(generated):
    table = generated[3]
    found = {name: table[name].null_count / NUM_ROWS for name in MISSING}
    assert found == pytest.approx(MISSING, abs=0.006)
    assert table["C19"].is_null() == table["C26"].is_null()
    assert table["I1"].is_null() != table["I3"].is_null()


def test_counts_have_many_zeros_heavy_tails_and_negative_values_as_in_criteo(generated):
    table = generated[3]
    values = {name: table[name].drop_null().to_numpy() for name in NUMBERS}
    assert {name: np.mean(values[name] == 0) for name in ("I1", "I2", "I5", "I12")} == pytest.approx(
        {"I1": 0.479, "I2": 0.181, "I5": 0.016, "I12": 0.744}, abs=0.01
    )
    assert {name for name in NUMBERS if values[name].min() < 0} == {"I2"}
    assert np.mean(values["I2"] == -1) == pytest.approx(0.1, abs=0.01)
    logs = np.log(values["I5"][values["I5"] > 0])
    assert (logs.mean(), logs.std()) == pytest.approx((7.36, 2.8), abs=0.1)
    assert values["I5"].max() > 1_000 * np.median(values["I5"])


def test_categories_are_hex_digits_by_zipfs_law_with_the_cardinalities_of_the_document(generated):
    table = generated[3]
    texts = [text for name in CATEGORIES for text in table[name].slice(0, 1_000).drop_null().to_pylist()]
    assert {len(text) for text in texts} == {8}
    for name, count in zip(CATEGORIES, CATEGORY_COUNTS, strict=True):
        shares = shares_of(table, name)
        assert len(shares) <= count
        assert count > 100 or len(shares) == count
        expected = [math.log(1 + 1 / rank) / math.log(count + 1) for rank in (1, 2, 3)]
        assert shares[:3] == pytest.approx(expected, rel=0.1)
    assert len(shares_of(table, "C20")) > 30_000
    distinct = [set(table[name].drop_null().unique().to_pylist()) for name in ("C6", "C17", "C9")]
    assert not distinct[0] & distinct[1]
    assert not distinct[0] & distinct[2]


@pytest.mark.parametrize("scale", [0.001, 0.1])
def test_cardinalities_are_scaled_but_no_category_has_less_than_three_ids(tmp_path, scale):
    generate_criteo(tmp_path, num_rows=60_000, seed=1, cardinality_scale=scale)
    table = pa.Table.from_batches(read_criteo(tmp_path).rows.batches())
    for name, count in zip(CATEGORIES, CATEGORY_COUNTS, strict=True):
        scaled = max(3, round(count * scale))
        assert len(shares_of(table, name)) == scaled or scaled > 100
        assert len(shares_of(table, name)) <= scaled


def test_the_truth_on_disk_is_the_truth_returned_and_fits_the_rows(generated):
    directory, truth, _, table = generated
    assert json.loads((directory / "truth.json").read_text()) == {
        "best_auc": truth.best_auc,
        "positive_rate": truth.positive_rate,
    }
    assert truth.positive_rate == np.mean(table["label"].to_numpy())


@pytest.mark.parametrize(("seed", "scale"), [(1, 1.0), (2, 0.01), (3, 0.0001), (4, 1.0)])
def test_a_quarter_of_the_labels_is_positive_and_the_best_auc_near_0_8(tmp_path, seed, scale):
    truth = generate_criteo(tmp_path, num_rows=50_000, seed=seed, cardinality_scale=scale)
    assert truth.positive_rate == pytest.approx(0.25, abs=0.01)
    assert truth.best_auc == pytest.approx(0.80, abs=0.015)


def test_mean_labels_of_ids_and_of_counts_rank_unseen_rows_well_but_not_better_than_the_truth(generated):
    _, truth, _, table = generated
    labels = table["label"].to_numpy()
    train, scores = np.arange(NUM_ROWS) < NUM_ROWS * 4 // 5, np.zeros(NUM_ROWS)
    groups = [codes_of(table, name) for name in CATEGORIES]
    for name in NUMBERS:
        groups.append(np.rint(2 * np.log1p(np.maximum(table[name].fill_null(-1).to_numpy(), -0.9))).astype(int) + 5)
    for group in groups:
        positives = np.bincount(group[train], weights=labels[train], minlength=group.max() + 1)
        counts = np.bincount(group[train], minlength=group.max() + 1)
        rates = ((positives + 5) / (counts + 20))[group]
        scores += np.log(rates / (1 - rates))
    assert 0.65 < exact_auc(labels[~train], scores[~train]) < truth.best_auc - 0.02


def interaction(table, first, second, num_ids=4):
    """χ² over its degrees of freedom of what two categories do to the label beyond the sum of their own effects."""
    codes = [codes_of(table, name) for name in (first, second)]
    frequent = [np.argsort(np.bincount(code))[::-1][:num_ids] for code in codes]
    places = [np.full(code.max() + 1, -1) for code in codes]
    for place, ids in zip(places, frequent, strict=True):
        place[ids] = np.arange(num_ids)
    rows, columns = (place[code] for place, code in zip(places, codes, strict=True))
    both = (rows >= 0) & (columns >= 0)
    cells = rows[both] * num_ids + columns[both]
    counts = np.bincount(cells, minlength=num_ids**2)
    rates = np.bincount(cells, weights=table["label"].to_numpy()[both], minlength=num_ids**2) / counts
    logits, weights = np.log(rates / (1 - rates)), counts * rates * (1 - rates)
    design = np.column_stack([np.tile(np.eye(num_ids), (num_ids, 1)), np.repeat(np.eye(num_ids), num_ids, axis=0)])
    root = np.sqrt(weights)
    fitted = design @ np.linalg.lstsq(design * root[:, None], logits * root, rcond=None)[0]
    return float(weights @ (logits - fitted) ** 2) / (num_ids - 1) ** 2


def test_pairs_of_some_categories_interact_and_others_do_not(generated):
    table = generated[3]
    assert interaction(table, "C9", "C26") > 4
    assert interaction(table, "C16", "C26") > 4
    assert interaction(table, "C13", "C9") < 3
    assert interaction(table, "C8", "C9") < 3


@examples(1 / 4)
@given(num_rows=st.integers(1_000, 9_000), seed=st.integers(0, 2**32))
def test_every_size_gives_exactly_so_many_rows_and_the_last_day_is_a_fifth(tmp_path_factory, num_rows, seed):
    directory = tmp_path_factory.mktemp("any")
    generate_criteo(directory, num_rows=num_rows, seed=seed, cardinality_scale=0.01)
    periods = read_criteo(directory).rows.periods
    assert (sum(periods), len(periods)) == (num_rows, 5)
    assert periods[-1] >= num_rows / 5 > periods[-1] - 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_rows": 999}, "at least 1000"),
        ({"seed": -1}, "seed is -1"),
        ({"cardinality_scale": 0.0}, "cardinality_scale is 0.0, expected a number above 0, at most 547"),
        ({"cardinality_scale": 548.0}, "cardinality_scale is 548.0"),
        ({"cardinality_scale": math.nan}, "cardinality_scale is nan"),
    ],
)
def test_numbers_out_of_range_are_refused_and_nothing_is_written(tmp_path, changed, message):
    with pytest.raises(ConfigError, match=message):
        generate_criteo(tmp_path / "new", **({"num_rows": 1_000, "seed": 1, "cardinality_scale": 1.0} | changed))
    assert not (tmp_path / "new").exists()
