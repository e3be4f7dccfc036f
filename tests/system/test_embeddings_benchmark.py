"""The benchmark of embeddings, on little data and in short turns: what it reports, not how fast it is."""

import pytest

from bench import embeddings


def test_it_compares_sizes_of_tables_and_one_table_with_many() -> None:
    network = embeddings.NETWORK.with_choices(bottom_mlp=(8,), top_mlp=(8,), batch_size=64)
    report = embeddings.run(1, sizes=(2_600, 5_200, 26_000), network=network, batch_sizes=(1, 32), turn_s=0.02)
    step_ms = {side: figures["step_ms"] for side, figures in report.results.items()}
    assert report.ratios == pytest.approx(
        {
            "step_time_growth": step_ms["26,000 zipf"] / step_ms["2,600 zipf"],
            "step_time_growth_uniform": step_ms["26,000 uniform"] / step_ms["2,600 uniform"],
            "tables_growth": step_ms["26,000 zipf, tables"] / step_ms["2,600 zipf, tables"],
            "tables_growth_uniform": step_ms["26,000 uniform, tables"] / step_ms["2,600 uniform, tables"],
            "fused_speedup@1": step_ms["26 tables, batch 1"] / step_ms["1 table, batch 1"],
            "fused_speedup@32": step_ms["26 tables, batch 32"] / step_ms["1 table, batch 32"],
        }
    )
    # 64 draws of 26 columns each: a Zipf law repeats itself more than a uniform one, whatever the size of the table.
    rows = {side: figures["distinct_rows"] for side, figures in report.results.items() if "distinct_rows" in figures}
    for size in ("2,600", "5,200", "26,000"):
        assert 26 < rows[f"{size} zipf"] < rows[f"{size} uniform"] <= 64 * 26
