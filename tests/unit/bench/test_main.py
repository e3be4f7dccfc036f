"""What `python -m bench` says before it measures, and marks in what it writes; what its chaos finds."""

import json
from pathlib import Path

import pytest
import typer

from bench import __main__ as program
from bench.chaos.stages import _check
from bench.data import vocabulary
from bench.harness.report import Report
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.storage.artifacts import publish
from tests.factories.ensembles import NAME, damage, publish_tiny

RATIO = "p50_growth_with_vocabulary"


def run(name: str, json_file: Path | None = None) -> None:
    program.main(name, repeats=1, recipe=None, device=None, json_file=json_file)


def test_missing_requirement_is_reported_before_anything_is_imported(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(program._NEEDS, "distributed", lambda: "Horovod is not installed: make horovod")
    monkeypatch.setattr(program, "import_module", lambda _: pytest.fail("it was imported"))
    with pytest.raises(typer.Exit):
        run("distributed")
    assert "bench distributed cannot run here: Horovod is not installed: make horovod" in capfd.readouterr().err


def test_ratio_is_printed_with_its_bound_and_last_value_and_a_busy_machine_is_marked(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    found = iter([1.5, 1.1])
    monkeypatch.setattr(vocabulary, "run", lambda _: Report(name="vocabulary", results={}, ratios={RATIO: next(found)}))
    figures = tmp_path / "docs/figures/data/vocabulary.json"
    monkeypatch.setattr(program, "busyness", lambda: "")
    run("vocabulary", figures)
    said = capfd.readouterr()
    assert f"{RATIO}: 1.5  asked ≤ 1.2\n" in said.out
    assert "busy" not in said.out + said.err
    monkeypatch.setattr(program, "busyness", lambda: "load 4.0")
    run("vocabulary", figures)
    said = capfd.readouterr()
    assert f"{RATIO}: 1.1  asked ≤ 1.2, 1.5 on 20" in said.out
    assert "the machine is busy (load 4.0)" in said.err.replace("\n", " ")
    assert json.loads(figures.read_text())["environment"]["busy"] == "load 4.0"


def test_damaged_last_figures_are_reported_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vocabulary, "run", lambda _: pytest.fail("it was run"))
    figures = tmp_path / "docs/figures/data/vocabulary.json"
    figures.parent.mkdir(parents=True)
    figures.write_text("{", encoding="utf-8")
    with pytest.raises(typer.Exit):
        run("vocabulary")
    assert "vocabulary.json is not a benchmark report" in capfd.readouterr().err.replace("\n", " ")


def test_damage_of_an_artifact_or_of_a_version_is_found(tmp_path: Path) -> None:
    ensemble = publish_tiny(tmp_path / NAME, 20)
    with publish(tmp_path / "artifact", "thing") as staging:
        (staging / "file").write_bytes(b"x")
    _check(tmp_path / NAME, tmp_path / "artifact")
    (tmp_path / "artifact" / "file").write_bytes(b"y")
    with pytest.raises(ArtifactError, match="does not match its checksum"):
        _check(tmp_path / NAME, tmp_path / "artifact")
    (tmp_path / "artifact" / "file").write_bytes(b"x")
    damage(ensemble, "predict")
    with pytest.raises(ArtifactError, match="does not match its checksum"):
        _check(tmp_path / NAME, tmp_path / "artifact")
