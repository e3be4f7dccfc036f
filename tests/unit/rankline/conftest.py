"""A real store of MLflow for each file: making one takes seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from rankline.runs.bench_reports import log_report
from rankline.runs.reader import Reader, open_reader
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.training.distributed.communicator import Array
from rankline.training.evaluation.validation_scores import FOLDER, ValidationScores
from rankline.workflows.schema.targets import Head
from tests.factories.ensembles import NAME, publish_tiny


@dataclass(frozen=True)
class Store:
    """Runs of one experiment, in a store below `root`."""

    root: Path
    client: MlflowClient
    experiment: str

    @property
    def uri(self) -> str:
        return str(self.client.tracking_uri)

    @property
    def reader(self) -> Reader:
        return open_reader(self.uri)

    def run(self) -> str:
        """One of which nothing is known."""
        return str(self.client.create_run(self.experiment).info.run_id)

    def trained(
        self,
        name: str,
        metrics: Mapping[str, float],
        *,
        params: Mapping[str, object] | None = None,
        scored: tuple[Array, Array] | None = None,
        report: BenchmarkReport | None = None,
        **tags: str,
    ) -> str:
        """One that ended: figures of the published model, and labels and scores of validation rows."""
        client, run_id = self.client, str(self.client.create_run(self.experiment, run_name=name).info.run_id)
        client.log_batch(
            run_id,
            [Metric(f"model/valid_{name}", value, 1, 1) for name, value in metrics.items()],
            [Param(name, str(value)) for name, value in (params or {}).items()],
            [RunTag(name, value) for name, value in tags.items()],
        )
        folder = self.root / run_id / FOLDER
        folder.mkdir(parents=True)
        if scored is not None:
            labels, scores = (values.astype(np.float32) for values in scored)
            ValidationScores(heads=(Head("label"),), labels=labels, scores=scores).write(folder)
            client.log_artifacts(run_id, str(folder), FOLDER)
        if report is not None:
            log_report(report, self.uri, run_id, self.root / run_id / "bench")
        client.set_terminated(run_id)
        return run_id


def exported(store: Store, path: Path, offset: int = 10, status: str = "FINISHED") -> ExportedEnsemble:
    """A version whose run ended so."""
    run_id = store.run()
    (path / "feature_spec.yaml").write_text("feature_spec: {}\n")
    store.client.log_artifact(run_id, str(path / "feature_spec.yaml"))
    store.client.set_terminated(run_id, status)
    return publish_tiny(path / NAME, offset, run=(run_id, store.uri))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """An empty one."""
    root = tmp_path_factory.mktemp("store")
    client = MlflowClient(tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    return Store(root, client, client.create_experiment("shop", artifact_location=(root / "artifacts").as_uri()))


@pytest.fixture
def nothing_registered(store: Store) -> None:
    """The store has no registered model."""
    for model in store.client.search_registered_models():
        store.client.delete_registered_model(model.name)
