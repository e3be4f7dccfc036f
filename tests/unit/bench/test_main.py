"""What `python -m bench` says before it measures, and marks in what it writes."""

import json
from pathlib import Path

import pytest
import typer

from bench import __main__ as program
from bench import vocabulary
from bench.report import Report


def run(name: str, json_file: Path | None = None) -> None:
    program.main(name, repeats=1, recipe=None, device=None, json_file=json_file)


def test_what_is_missing_is_said_before_anything_is_imported(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(program._NEEDS, "distributed", lambda: "Horovod is not installed: make horovod")
    monkeypatch.setattr(program, "import_module", lambda _: pytest.fail("it was imported"))
    with pytest.raises(typer.Exit):
        run("distributed")
    assert "bench distributed cannot run here: Horovod is not installed: make horovod" in capfd.readouterr().err


def test_a_benchmark_that_measures_no_recipe_refuses_one() -> None:
    with pytest.raises(typer.BadParameter, match="vocabulary knows no recipe"):
        program.main("vocabulary", recipe="criteo-dlrm")


@pytest.mark.parametrize("busy", ["", "load 4.0, 90% of the processors in use, 0% stolen"])
def test_a_busy_machine_is_said_at_the_start_and_marked(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, busy: str
) -> None:
    said = []

    def measure(_: int) -> Report:
        said.append(capfd.readouterr().err)
        return Report(name="vocabulary", results={"a": {"b": 1.0}}, ratios={"c": 2.0})

    monkeypatch.setattr(program, "busyness", lambda: busy)
    monkeypatch.setattr(vocabulary, "run", measure)
    run("vocabulary", tmp_path / "out.json")
    assert (f"the machine is busy ({busy})" in said[0].replace("\n", " ")) == bool(busy)
    assert json.loads((tmp_path / "out.json").read_text())["environment"].get("busy", "") == busy
    assert ("the machine was busy" in capfd.readouterr().out) == bool(busy)


def test_what_is_asked_and_what_was_reached_last_stand_beside_a_ratio(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "busyness", lambda: "")
    found = iter([1.5, 1.1])
    monkeypatch.setattr(
        vocabulary,
        "run",
        lambda _: Report(name="vocabulary", results={}, ratios={"p50_growth_with_vocabulary": next(found)}),
    )
    run("vocabulary", tmp_path / "docs/figures/vocabulary.json")
    assert "p50_growth_with_vocabulary: 1.5  asked ≤ 1.2\n" in capfd.readouterr().out
    run("vocabulary", tmp_path / "docs/figures/vocabulary.json")
    assert "p50_growth_with_vocabulary: 1.1  asked ≤ 1.2, 1.5 on 20" in capfd.readouterr().out


def test_last_figures_that_are_damaged_are_told_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vocabulary, "run", lambda _: pytest.fail("it was run"))
    figures = tmp_path / "docs/figures/vocabulary.json"
    figures.parent.mkdir(parents=True)
    figures.write_text("{", encoding="utf-8")
    with pytest.raises(typer.Exit):
        run("vocabulary")
    assert "vocabulary.json holds no report of a benchmark" in capfd.readouterr().err.replace("\n", " ")
