"""Searches on a small data set, in a store of their own, and the spaces they search."""

import json
import shutil
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import optuna
import pytest
from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Run
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from rankline.recipes import Recipe, recipe_named
from rankline.runs.reader import open_reader
from rankline.runs.summary import runs_in
from rankline.training.config.train import TrainConfig
from rankline.training.models import MODELS
from rankline.training.models.tabular import DLRMConfig, MLPConfig
from rankline.training.run.observers import Observer, TrialPruned
from rankline.training.run.train import run_trial
from rankline.training.tracking import TrackingConfig
from rankline.tuning.hyperparameters import Tuned, tune
from rankline.tuning.search_space import OneOf, Range, search_space
from rankline.workflows.core.errors import ConfigError, RanklineError
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.storage.artifacts import CALLED
from tests.factories.recorders import ProgressRecord
from tests.factories.training.ratings import make_prepared

TRAIN = TrainConfig(model=MLPConfig(hidden=(8,)), epochs=2, batch_size=64, learning_rate=0.0001, seed=3)
ONLY = ("learning_rate", "hidden")


@dataclass(frozen=True)
class Workplace:
    prepared: PreparedData
    tracking: TrackingConfig
    recipe: Recipe

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.tracking.uri)

    @property
    def journal(self) -> Path:
        return self.tracking.directory / "tune" / "trials.journal"

    def tune(self, num_trials: int, **changes: object) -> Tuned:
        chosen: dict[str, object] = {"only": ONLY, **changes}
        return tune(
            replace(self.recipe, train=chosen.pop("train", TRAIN)),  # type: ignore[arg-type]
            self.prepared,
            num_trials=num_trials,
            tracking=self.tracking,
            directory=self.journal.parent,
            progress=ProgressRecord(),
            **chosen,  # type: ignore[arg-type]
        )

    @property
    def studies(self) -> list[optuna.Study]:
        storage = JournalStorage(JournalFileBackend(str(self.journal)))
        names = optuna.get_all_study_names(storage)
        return [optuna.load_study(study_name=name, storage=storage) for name in names]

    def trials(self, search: str) -> list[Run]:
        experiment = self.client.get_run(search).info.experiment_id
        return list(self.client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{search}'"))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    root = tmp_path_factory.mktemp("tuning")
    prepared = PreparedData.load(make_prepared(root / "prepared", num_train=1200, num_valid=200))
    return Workplace(prepared, TrackingConfig(directory=root, experiment="shop"), recipe_named("movielens"))


@pytest.fixture(scope="module")
def tuned(first: Workplace) -> Tuned:
    return first.tune(3)


@pytest.fixture
def workplace(first: Workplace, tuned: Tuned, tmp_path: Path) -> Workplace:
    """As that search has left it: what a test adds is its own."""
    shutil.copytree(first.tracking.directory, tmp_path / "tuning")
    return replace(first, tracking=replace(first.tracking, directory=tmp_path / "tuning"))


def test_trials_are_runs_and_the_best_is_no_worse_than_the_recipe(workplace: Workplace, tuned: Tuned) -> None:
    trials = workplace.trials(tuned.run_id)
    assert tuned.num_trials == len(trials) == 3
    figures = [run.data.metrics["inner_auc"] for run in trials]
    assert tuned.after == pytest.approx(max(figures))
    assert tuned.before <= tuned.after
    assert {run.info.status for run in trials} == {"FINISHED"}
    own = next(run for run in trials if run.info.run_name.startswith("trial 0"))
    assert own.data.metrics["inner_auc"] == pytest.approx(tuned.before)
    assert float(own.data.params["learning_rate"]) == TRAIN.learning_rate
    assert not [name for run in trials for name in run.data.metrics if "valid" in name]  # these rows chose nothing
    search = workplace.client.get_run(tuned.run_id)
    assert search.info.status == "FINISHED"
    assert search.data.tags["command"] == tuned.command
    assert search.data.metrics["best/inner_auc"] == tuned.after
    listed = runs_in(open_reader(workplace.client.tracking_uri))
    assert [run.run_id for run in listed] == [tuned.run_id]  # not each trial


def test_choices_that_won_are_those_of_the_best_trial(workplace: Workplace, tuned: Tuned) -> None:
    best = max(workplace.trials(tuned.run_id), key=lambda run: run.data.metrics["inner_auc"])
    for name, value in tuned.choices.items():
        assert best.data.params[name] == str(value)
        assert f"--{name.replace('_', '-')} " in tuned.command
    assert json.loads((workplace.journal.parent / "tuned.json").read_text())["command"] == tuned.command


def test_command_trains_with_all_options_of_the_search(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    file = workplace.tracking.directory / "my recipe.yaml"
    monkeypatch.setitem(CALLED, workplace.recipe.name, str(file))
    recipe = replace(workplace.recipe, unchanged=replace(TRAIN, model=DLRMConfig(), epochs=5))
    tuned = replace(workplace, recipe=recipe).tune(1, train=replace(TRAIN, batch_size=32))
    options = "--model mlp --batch-size 32 --epochs 2 --hidden 8"
    assert tuned.command == f"rankline train '{file}' {options} --work-dir {file.parent}"


def test_search_resumes_and_repeats_an_interrupted_trial(workplace: Workplace, tuned: Tuned) -> None:
    (study,) = workplace.studies
    study.ask()  # a process that was killed
    again = workplace.tune(4)
    assert (again.num_trials, again.run_id) == (4, tuned.run_id)
    assert len(workplace.trials(tuned.run_id)) == 4
    assert again.after >= tuned.after
    assert workplace.tune(4) == again  # nothing is left to do


def test_tune_starts_a_new_search_for_other_choices(workplace: Workplace, tuned: Tuned) -> None:
    other = workplace.tune(1, train=replace(TRAIN, learning_rate=0.001))
    assert other.run_id != tuned.run_id
    assert (other.choices, other.before) == ({}, other.after)


def test_choices_that_cannot_be_trained_are_named(workplace: Workplace) -> None:
    with pytest.raises(RanklineError, match="Lower the learning rate"):
        workplace.tune(2, train=replace(TRAIN, optimizer="sgd", learning_rate=1e30))
    assert {run.info.status for run in workplace.client.search_runs(["1"], "attributes.run_name = 'tune mlp'")} == {
        "FINISHED",
        "FAILED",
    }


def test_tune_rejects_a_concurrent_search(workplace: Workplace, tuned: Tuned) -> None:
    with FileLock(workplace.journal.parent / ".lock"), pytest.raises(RanklineError, match="another `rankline tune` is"):
        workplace.tune(tuned.num_trials)


def test_trial_that_is_ended_early_has_no_figure_and_says_so(workplace: Workplace) -> None:
    class Impatient(Observer):
        def after_epoch(self, step: int, figures: Mapping[str, float]) -> None:
            assert figures["inner_auc"] > 0
            raise TrialPruned

    name = "ended early"
    tracking = replace(workplace.tracking, experiment="early", run_name=name)
    assert run_trial(workplace.prepared, TRAIN, tracking=tracking, observers=lambda _: [Impatient()]) == {}
    experiment = workplace.client.get_experiment_by_name("early")
    assert experiment is not None
    (run,) = workplace.client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status, run.data.tags["pruned"]) == (name, "FINISHED", "true")


@pytest.mark.slow
def test_trial_that_does_worse_than_most_is_ended_early(workplace: Workplace) -> None:
    learning_rates = (0.0002, 0.0005, 0.0008, 0.001, 0.00001)  # the last one learns next to nothing
    train = replace(TRAIN, seed=4)
    first = workplace.tune(1, train=train, only=("learning_rate",))
    study = next(s for s in workplace.studies if s.user_attrs.get("run_id") == first.run_id)
    for learning_rate in learning_rates:
        study.enqueue_trial({"learning_rate": learning_rate})
    tuned = workplace.tune(1 + len(learning_rates), train=train, only=("learning_rate",))
    assert (tuned.num_trials, tuned.num_pruned) == (6, 1)
    *others, slow = study.trials
    assert (slow.params["learning_rate"], slow.state) == (0.00001, TrialState.PRUNED)
    epoch, value = slow.last_step, slow.intermediate_values[slow.last_step]
    assert value < statistics.median(trial.intermediate_values[epoch] for trial in others)
    (pruned,) = (run for run in workplace.trials(first.run_id) if run.data.tags.get("pruned"))
    assert pruned.info.run_id == slow.user_attrs["run_id"]
    assert (pruned.info.status, pruned.data.params["learning_rate"]) == ("FINISHED", "1e-05")


TUNED = [model for model in MODELS.values() if model.framework.learns_in_epochs]


@pytest.mark.parametrize("model", TUNED, ids=lambda model: model.name)
def test_search_space_values_are_valid_and_include_the_default(model) -> None:  # type: ignore[no-untyped-def]
    config = TrainConfig(model=model())
    space = search_space(config)
    assert space
    own = config.to_dict()
    for name, values in space.items():
        assert values.is_choice
        if isinstance(values, OneOf):
            assert own[name] in values.values
            tried = values.values
        else:
            assert values.low <= own[name] <= values.high
            tried = (values.low, values.high)
        for value in tried:
            config.with_choices(**{name: value})


def test_model_without_options_to_tune_is_refused() -> None:
    with pytest.raises(ConfigError, match="model 'auto' has no options to tune. Choose another model"):
        search_space(TrainConfig(model=MODELS["auto"]()))


def test_range_reaches_to_the_recipes_own_value() -> None:
    space = search_space(TrainConfig(model=DLRMConfig(dropout=0.6), learning_rate=0.5))
    assert space["dropout"] == Range(low=0.0, high=0.6)
    assert space["learning_rate"] == Range(low=0.05, high=5.0, is_log=True)
    assert space["top_mlp"] == OneOf(values=((64, 64, 64), (128, 128, 128), (256, 256, 256)))


def test_tune_varies_only_named_fields_and_rejects_others() -> None:
    assert list(search_space(TrainConfig(), ("dropout",))) == ["dropout"]
    with pytest.raises(ConfigError, match="learning_rat cannot be tuned for model 'mlp'.*learning_rate"):
        search_space(TrainConfig(), ("learning_rat",))
