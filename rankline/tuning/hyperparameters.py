"""Hyperparameter search of `rankline tune`, evaluated on held-out training rows. Each trial is an MLflow run.

The study is a journal in the work directory, so an interrupted search continues where it stopped. A study belongs to
one version of the data and one recipe; any change starts a new study.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from mlflow import MlflowClient
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from rankline.recipes import Recipe
from rankline.recipes.overrides import text_of
from rankline.runs.store import ending_run
from rankline.terminal.commands import command, options_of
from rankline.training.config.train import TrainConfig
from rankline.training.evaluation import objective_of
from rankline.training.run.loop import INNER
from rankline.training.run.observers import Observer, TrialPruned
from rankline.training.run.train import run_trial
from rankline.training.tracking import RunLog, TrackingConfig, quiet
from rankline.training.tracking.upload import client_of, experiment_id
from rankline.tuning.search_space import OneOf, Range, Values, search_space
from rankline.workflows.core.errors import RanklineError
from rankline.workflows.core.formatting import quality_figure
from rankline.workflows.core.progress import Part, Progress
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.storage.artifacts import write_whole

_RUN_ID = "run_id"  # Optuna attribute of a search or trial: its MLflow run
_OWN = "own"  # Optuna attribute that marks the trial of the recipe's settings
_DONE = (TrialState.COMPLETE, TrialState.PRUNED)
_DIGITS = 4
_STARTUP_TRIALS = 5  # trials that are never pruned, since there is nothing to compare them with
_UNFINISHED = 50  # failed trials allowed in addition to the requested ones


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The result of a hyperparameter search.

    Attributes:
        recipe: the recipe's argument on the command line.
        choices: settings that differ from the recipe's.
        metric: title of the objective.
        before, after: the objective with the recipe's settings, and with `choices`, on a part of the training rows.
        epoch: best epoch of the best trial.
        num_pruned: number of trials that were ended early.
        run_id: MLflow run of the search, the parent of the trials' runs.
        command: command that trains with the choices and all options of the search.
    """

    recipe: str
    choices: Mapping[str, Any]
    metric: str
    before: float
    after: float
    epoch: int
    num_trials: int
    num_pruned: int
    run_id: str
    command: str

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "choices": dict(self.choices)}


def tune(
    recipe: Recipe,
    prepared: PreparedData,
    *,
    num_trials: int,
    only: tuple[str, ...],
    tracking: TrackingConfig,
    directory: Path,
    progress: Progress,
) -> Tuned:
    """Search until there are `num_trials` complete or pruned trials, including trials from earlier calls.

    The recipe's settings are the first trial. The search varies the settings in `only`, or all if it is empty.
    """
    space = search_space(recipe.train, only)
    directory.mkdir(parents=True, exist_ok=True)
    with _alone(directory):
        with quiet():
            client = client_of(tracking.uri)
        search = _Search(recipe, prepared, space, _study(recipe, prepared, space, directory), client, tracking)
        with ending_run(client, search.run_id):
            for _ in range(num_trials + _UNFINISHED):
                if (done := search.num_done) >= num_trials:
                    break
                search.step(Part(progress, done, num_trials, partial(search.says, done, num_trials)))
            else:
                raise RanklineError(f"{_UNFINISHED} trials failed. Last error: {search.failure}")
            tuned = search.result()
            write_whole(directory / "tuned.json", (json.dumps(tuned.to_dict(), indent=2) + "\n").encode())
            search.record(tuned, directory / "tuned.json")
    progress.update(1, 1, search.words)
    return tuned


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Lock the directory against concurrent searches, which would mark this search's running trials as interrupted."""
    try:
        with FileLock(directory / ".lock", timeout=0):
            yield
    except Timeout:
        raise RanklineError(f"another `rankline tune` is running in {directory}. Wait until it has finished.") from None


def _study(recipe: Recipe, prepared: PreparedData, space: Mapping[str, Values], directory: Path) -> optuna.Study:
    """Return the study for this data, recipe and search space, after marking interrupted trials as failed."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    about = [prepared.manifest.fingerprint, sorted(recipe.train.to_dict().items()), sorted(space)]
    study = optuna.create_study(
        study_name=f"{recipe.name}-{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:12]}",
        storage=JournalStorage(JournalFileBackend(str(directory / "trials.journal"))),
        sampler=optuna.samplers.TPESampler(seed=recipe.train.seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=_STARTUP_TRIALS, n_warmup_steps=1),
        direction="maximize" if objective_of(prepared.spec.heads).higher_is_better else "minimize",
        load_if_exists=True,
    )
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
    known = study.get_trials(states=(TrialState.COMPLETE, TrialState.WAITING))
    if not any(_OWN in trial.user_attrs for trial in known):
        own = {name: getattr(recipe.train, name, getattr(recipe.train.model, name, None)) for name in space}
        study.enqueue_trial({name: _as_drawn(value) for name, value in own.items()}, user_attrs={_OWN: True})
    return study


class _Search:
    def __init__(
        self,
        recipe: Recipe,
        prepared: PreparedData,
        space: Mapping[str, Values],
        study: optuna.Study,
        client: MlflowClient,
        tracking: TrackingConfig,
    ) -> None:
        self._recipe, self._prepared, self._space, self._study = recipe, prepared, space, study
        self._client, self._tracking = client, tracking
        self._objective = objective_of(prepared.spec.heads)
        with quiet():
            self.run_id = self._opened()
        self.failure = ""
        """Error of the last failed trial."""

    @property
    def num_done(self) -> int:
        return len(self._done(*_DONE))

    @property
    def words(self) -> str:
        if not self._done(TrialState.COMPLETE):
            return ""
        best = quality_figure(self._study.best_value)
        return f"{INNER} {self._objective.title} {best} by trial {self._study.best_trial.number}"

    def says(self, number: int, of: int, note: str) -> str:
        return ", ".join(part for part in (f"trial {number + 1} of {of}", self.words, note) if part)

    def step(self, progress: Progress) -> None:
        """Run the next trial. Raise `RanklineError` if training with the recipe's own settings fails."""
        trial = self._study.ask()
        choices = {name: _drawn(trial, name, values) for name, values in self._space.items()}
        config = self._recipe.train.with_choices(**choices)
        named = replace(self._recipe, train=config, unchanged=self._recipe.train).run_name
        watch = _Watch(trial, f"{INNER}_{self._objective.name}")
        try:
            metrics = run_trial(
                self._prepared,
                config,
                tracking=replace(self._tracking, run_name=f"trial {trial.number}: {named}", parent=self.run_id),
                progress=progress,
                observers=watch.of,
            )
        except RanklineError as error:
            self.failure = str(error)
            self._study.tell(trial, state=TrialState.FAIL)
            if _OWN in trial.user_attrs:
                raise
            return
        trial.set_user_attr(_RUN_ID, watch.run_id)
        if not metrics:
            self._study.tell(trial, state=TrialState.PRUNED)
            return
        trial.set_user_attr("epoch", int(metrics["epoch"]))
        self._study.tell(trial, metrics[f"{INNER}_{self._objective.name}"])

    def result(self) -> Tuned:
        best = self._study.best_trial
        own = next(trial for trial in self._done(TrialState.COMPLETE) if _OWN in trial.user_attrs)
        found, before = (
            {name: _value_of(values, trial.params[name]) for name, values in self._space.items()}
            for trial in (best, own)
        )
        choices = {name: value for name, value in found.items() if value != before[name]}
        words = ["train", self._recipe.called, *_options(self._recipe, self._recipe.train.with_choices(**choices))]
        return Tuned(
            recipe=self._recipe.called,
            choices=choices,
            metric=self._objective.title,
            before=own.values[0],
            after=best.values[0],
            epoch=best.user_attrs["epoch"],
            num_trials=self.num_done,
            num_pruned=len(self._done(TrialState.PRUNED)),
            run_id=self.run_id,
            command=command(*words, work_dir=self._tracking.directory),
        )

    def record(self, tuned: Tuned, evidence: Path) -> None:
        client, run_id = self._client, self.run_id
        client.log_metric(run_id, f"best/{INNER}_{self._objective.name}", tuned.after, step=tuned.num_trials)
        client.set_tag(run_id, "command", tuned.command)
        client.log_artifact(run_id, str(evidence))

    def _opened(self) -> str:
        """Return the ID of the search's MLflow run, resuming the run if an earlier call created it."""
        if run_id := self._study.user_attrs.get(_RUN_ID):
            self._client.update_run(run_id, status="RUNNING")
            return str(run_id)
        experiment = experiment_id(self._client, self._tracking)
        run = self._client.create_run(experiment, run_name=f"tune {self._recipe.train.model.name}", tags={})
        self._study.set_user_attr(_RUN_ID, run.info.run_id)
        return str(run.info.run_id)

    def _done(self, *states: TrialState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states)


class _Watch(Observer):
    """An observer that reports to Optuna after each epoch, and prunes trials that perform worse than most."""

    def __init__(self, trial: optuna.Trial, judged_by: str) -> None:
        self._trial, self._judged_by, self._epoch = trial, judged_by, 0
        self.run_id = ""

    def of(self, log: RunLog) -> "list[Observer]":
        self.run_id = log.run_id
        return [self]

    def after_epoch(self, step: int, figures: Mapping[str, float]) -> None:  # noqa: ARG002  (an observer's signature)
        self._epoch += 1
        self._trial.report(figures[self._judged_by], self._epoch)
        if _OWN not in self._trial.user_attrs and self._trial.should_prune():
            raise TrialPruned


def _options(recipe: Recipe, train: TrainConfig) -> list[str]:
    """Return the options that turn the training settings of the recipe's file into `train`."""
    own, model = recipe.unchanged or recipe.train, {}
    if train.model.name != own.model.name:
        own, model = own.with_choices(model=type(train.model)()), {"model": train.model.name}
    before = own.to_dict()
    return options_of(model | {name: value for name, value in train.to_dict().items() if value != before[name]})


def _drawn(trial: optuna.Trial, name: str, values: Values) -> Any:
    if isinstance(values, OneOf):
        return _value_of(values, trial.suggest_categorical(name, [_as_drawn(value) for value in values.values]))
    assert isinstance(values, Range)
    if isinstance(values.low, int):
        return trial.suggest_int(name, values.low, int(values.high), log=values.is_log)
    return _rounded(trial.suggest_float(name, values.low, values.high, log=values.is_log))


def _as_drawn(value: Any) -> Any:
    """Convert a tuple to a string, because Optuna cannot store tuples."""
    return text_of(value) if isinstance(value, tuple) else value


def _value_of(values: Values, drawn: Any) -> Any:
    if isinstance(values, OneOf):
        return next(value for value in values.values if _as_drawn(value) == drawn)
    return _rounded(drawn) if isinstance(drawn, float) else drawn


def _rounded(value: float) -> float:
    """Round to `_DIGITS` significant digits, so that the printed value is exactly the value tried."""
    return float(f"{value:.{_DIGITS}g}")
