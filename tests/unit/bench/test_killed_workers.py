from dataclasses import replace

from bench.killed_workers import KillRecord, KillReport

CALM = KillRecord(
    seed=0,
    killed=None,
    killed_at_s=0.0,
    duration_s=10.0,
    exit_code=0,
    auc=0.80,
    num_mlflow_runs=1,
    errors="",
)


def test_a_run_counts_if_it_made_a_model_and_one_record() -> None:
    hung = replace(CALM, killed=0, exit_code=-15, auc=None)
    split = replace(CALM, killed=1, num_mlflow_runs=2)
    left_open = replace(CALM, killed=1, num_mlflow_runs=-1)
    figures = KillReport(calm=[CALM], disturbed=[CALM, hung, split, left_open]).to_dict()
    assert (figures["num_killed"], figures["num_ended_well"]) == (4, 1)


def test_auc_is_within_three_deviations_of_undisturbed_runs() -> None:
    calm = [replace(CALM, auc=auc) for auc in (0.79, 0.80, 0.81)]
    disturbed = [replace(CALM, killed=0, auc=auc) for auc in (0.769, 0.771, 0.829, 0.831)]
    figures = KillReport(calm=calm, disturbed=disturbed).to_dict()
    assert figures["num_auc_within_spread"] == 2
    assert figures["disturbed_duration_s"] == 10.0
