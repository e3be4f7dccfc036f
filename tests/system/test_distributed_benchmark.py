"""The benchmark of several workers, on little data: what must hold whatever the machine, not how fast it is."""

import pytest

from bench import distributed

pytest.importorskip("horovod", reason="Horovod is not installed: make horovod")


def test_two_workers_learn_what_one_process_learns() -> None:
    """Of one optimizer: `test_workers_exact` has all of them."""
    results, ratios = distributed.measure_weights(global_rows=256, num_steps=4, optimizers=("lazy_adam",))
    assert ratios == results["lazy_adam"]
    assert 0 < ratios["weights_difference"] <= max(1e-6, 5 * ratios["rounding"])


def test_what_is_sent_follows_the_touched_rows_and_not_the_table() -> None:
    results, ratios = distributed.measure_bytes(
        table_rows=(10_000, 40_000), touched_rows=(256, 4_096), num_steps=4, idle_s=0.2
    )
    assert len(results) == 3  # the larger of either with both of the other
    for figures in results.values():
        assert 0 < figures["sparse_bytes"] < figures["dense_bytes"]
    row_bytes = 16 * 4 + 4
    assert results["10,000 rows, 4,096 touched"]["sparse_bytes"] == pytest.approx(4_096 * row_bytes, rel=0.25)
    assert results["40,000 rows, 256 touched"]["dense_bytes"] > 40_000 * 16 * 4
    assert ratios["bytes_growth_with_table"] == pytest.approx(1, abs=0.3)
    assert ratios["sparse_over_dense_bytes"] < 0.2
