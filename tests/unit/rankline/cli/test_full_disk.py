"""A disk that is full when results are written costs no figure that is there to be shown."""

import errno
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from rankline.cli.main import app
from tests.factories.reports import report_of, result_of


def test_the_report_is_shown_and_saved_where_the_json_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Any] = []

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    config, manifest = SimpleNamespace(max_batch_size=10), SimpleNamespace(made_from={})
    ensemble = SimpleNamespace(model_config=config, manifest=manifest, tracking_uri="", run_id="r")
    monkeypatch.setattr("rankline.serving.repository.ensemble.ExportedEnsemble.load", lambda *_: ensemble)
    monkeypatch.setattr("rankline.workflows.preprocess.prepared_data.PreparedData.load", lambda *_: None)
    monkeypatch.setattr("rankline.cli.bench._measure", lambda *_: report_of(result_of()))
    monkeypatch.setattr("rankline.cli.bench.busyness", str)
    monkeypatch.setattr("rankline.cli.bench.save_report", lambda *report: saved.append(report))
    monkeypatch.setattr("rankline.api.pipeline.write_json", no_space)
    done = CliRunner().invoke(app, ["bench", "--batch-sizes", "1", "--json", "out.json"])
    assert done.exit_code == 1
    assert "1 row: p50" in done.stdout
    assert "the disk is full" in done.stderr
    assert len(saved) == 1
