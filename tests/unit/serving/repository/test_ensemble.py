"""Versions of an ensemble on disk."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rankline.serving.deploy
import rankline.serving.repository.ensemble
from rankline.serving.repository.ensemble import (
    ExportedEnsemble,
    active_version,
    active_versions,
    add_version,
    before,
    open_versions,
    publish_version,
    refuse_other_project,
    versions,
)
from rankline.serving.triton.config import EnsembleConfig, ModelConfig, Step, to_pbtxt
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.schema.tensors import Tensor
from rankline.workflows.storage.artifacts import Manifest, sha256_of
from tests.factories.ensembles import damage, publish_tiny
from tests.harness.process.disk_calls import DiskCalls

CONFIG_AWK = Path(rankline.serving.deploy.__file__).parent / "bin/config.awk"
X, Y = Tensor(name="x", dtype="int64"), Tensor(name="y", dtype="int64")


def export(
    path: Path,
    *,
    keep: int = 3,
    content: str = "plan",
    backend: str = "nvtabular",
    promote: bool = True,
    fail: BaseException | None = None,
    **details: object,
) -> int:
    """Publish a version with one step that holds one file; its number."""
    about = {"run_id": f"r{content}", **details}
    with publish_version(path, "m", made_from={}, details=about, keep=keep, promote=promote) as new:
        step = ModelConfig(
            name=f"m_transform_v{new.number}",
            backend=backend,
            inputs=(X,),
            outputs=(Y,),
            max_batch_size=1,
            parameters={"MANIFEST": f"m/{new.number}/manifest.json"},
        )
        whole = EnsembleConfig(
            name="m",
            version=new.number,
            inputs=(X,),
            outputs=(Y,),
            max_batch_size=1,
            steps=(Step(model=step.name, inputs={"x": "x"}, outputs={"y": "y"}),),
        )
        (new.directory / step.name / "1").mkdir(parents=True)
        (new.directory / step.name / "1" / "plan").write_text(content)
        (new.directory / step.name / "config.pbtxt").write_text(to_pbtxt(step))
        (new.directory / "m" / str(new.number)).mkdir(parents=True)
        (new.directory / "m" / str(new.number) / "config.pbtxt").write_text(to_pbtxt(whole))
        if fail is not None:
            raise fail
    return new.number


def version_alone(path: Path, number: int, target: Path) -> tuple[Path, str]:
    """A copy of one version, as it comes from elsewhere, and its fingerprint."""
    manifest = ExportedEnsemble.load(path, number).manifest
    for name in (*manifest.files, f"m/{number}/manifest.json"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path / name, target / name)
    return target, manifest.fingerprint


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_version_of_another_machine_is_added_inactive(tmp_path: Path) -> None:
    origin, path = tmp_path / "origin" / "m", tmp_path / "elsewhere" / "m"
    for content in ("first", "second"):
        export(origin, content=content)
    for number in (1, 2, 1):  # the last is there already
        source, fingerprint = version_alone(origin, number, tmp_path / f"copy{number}")
        added = add_version(source, path, "m", fingerprint=fingerprint, keep=2)
        assert added.manifest == ExportedEnsemble.load(origin, number).manifest
        added.check_files()
    assert [one.version for one in versions(path)] == [1, 2]
    assert active_version(path, "m") == 1  # one has to answer


def test_added_old_version_is_not_the_one_deleted(tmp_path: Path) -> None:
    origin, path = tmp_path / "origin" / "m", tmp_path / "elsewhere" / "m"
    for content in "abcd":
        export(origin, content=content, keep=9)
    for number in (2, 3, 4, 1):
        source, fingerprint = version_alone(origin, number, tmp_path / f"copy{number}")
        add_version(source, path, "m", fingerprint=fingerprint, keep=2).activate()
    assert [one.version for one in versions(path)] == [1, 3, 4]


def test_add_version_refuses_another_than_was_asked_for(tmp_path: Path) -> None:
    origin, path = tmp_path / "origin" / "m", tmp_path / "elsewhere" / "m"
    export(origin)
    source, fingerprint = version_alone(origin, 1, tmp_path / "copy")
    with pytest.raises(ArtifactError, match="contains m, expected a version of 'other'"):
        add_version(source, path, "other", fingerprint=fingerprint, keep=2)
    with pytest.raises(ArtifactError, match="has fingerprint .*, expected"):
        add_version(source, path, "m", fingerprint="another", keep=2)
    plan = next(source.glob("m_transform_v1/1/plan"))
    plan.write_text("PLAN")
    with pytest.raises(ArtifactError, match="does not match its checksum"):
        add_version(source, path, "m", fingerprint=fingerprint, keep=2)
    manifest = source / "m" / "1" / "manifest.json"
    (digest,) = (
        record.sha256 for name, record in Manifest.read(manifest.parent).files.items() if name.endswith("plan")
    )
    manifest.write_text(manifest.read_text().replace(digest, sha256_of(plan)))  # altered alike
    with pytest.raises(ArtifactError, match="has fingerprint .*, expected"):
        add_version(source, path, "m", fingerprint=fingerprint, keep=2)
    assert not path.exists()


def test_unpromoted_version_leaves_the_active_one(tmp_path: Path) -> None:
    path = tmp_path / "m"
    assert export(path, content="first", promote=False) == 1
    assert ExportedEnsemble.load(path).version == 1  # one has to answer
    for _ in range(4):
        export(path, content="waiting", keep=2, promote=False)
    assert ExportedEnsemble.load(path).version == 1
    assert [version.version for version in versions(path)] == [1, 4, 5]
    assert active_versions(tmp_path) == {"rfirst": "m 1"}
    ExportedEnsemble.load(path, 5).activate()
    assert active_versions(tmp_path) == {"rwaiting": "m 5"}
    assert before(path).version == 1  # which it takes over from
    (path / "m" / "config.pbtxt").write_text("damaged")
    assert active_versions(tmp_path) == {}


def test_concurrent_promotion_conflicts(tmp_path: Path) -> None:
    path = tmp_path / "m"
    export(path)
    for _ in range(2):
        export(path, promote=False)
    first, second = (ExportedEnsemble.load(path, number) for number in (2, 3))
    first.activate(in_place_of=1)
    with pytest.raises(ArtifactError, match="version 3 was compared with version 1, but version 2 is active now"):
        second.activate(in_place_of=1)
    assert ExportedEnsemble.load(path).version == 2
    second.activate()
    assert ExportedEnsemble.load(path).version == 3


def test_export_adds_a_version_and_activates_it(tmp_path: Path) -> None:
    assert [export(tmp_path / "m") for _ in range(3)] == [1, 2, 3]
    assert [version.version for version in versions(tmp_path / "m")] == [1, 2, 3]
    active = ExportedEnsemble.load(tmp_path / "m")
    assert (active.version, active.name, active.steps, active.run_id) == (3, "m", ("m_transform_v3",), "rplan")
    assert [version.is_active for version in versions(tmp_path / "m")] == [False, False, True]


def test_version_is_synced_before_it_is_active(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = DiskCalls(monkeypatch)
    export(tmp_path / "m")
    files = {"m_transform_v1/1/plan", "m_transform_v1/config.pbtxt", "m/1/config.pbtxt", "m/1/manifest.json"}
    renames = [number for number, (call, _) in enumerate(calls.made) if call == "rename"]
    synced = calls.synced(0, renames[0])
    assert all(any(path.endswith(file) for path in synced) for file in files)
    assert {str(tmp_path / "m"), str(tmp_path / "m" / "m")} <= calls.synced(renames[-2], renames[-1])


def test_rollback_changes_one_file_and_numbers_go_on(tmp_path: Path) -> None:
    export(tmp_path / "m"), export(tmp_path / "m")
    with pytest.raises(ArtifactError, match=r"nowhere does not exist\. Did you mean m\? Expected"):
        ExportedEnsemble.load(tmp_path / "nowhere")
    was = contents(tmp_path / "m")
    before(tmp_path / "m").activate()
    now = contents(tmp_path / "m")
    assert [name for name in now if was[name] != now[name]] == ["m/config.pbtxt"]
    assert active_version(tmp_path / "m", "m") == 1
    with pytest.raises(ArtifactError, match="no version before the active version 1"):
        before(tmp_path / "m")
    assert export(tmp_path / "m") == 3


def test_oldest_versions_are_deleted_with_their_steps(tmp_path: Path) -> None:
    for _ in range(5):
        export(tmp_path / "m", keep=2)
    assert [version.version for version in versions(tmp_path / "m")] == [4, 5]
    assert sorted(entry.name for entry in (tmp_path / "m").iterdir() if entry.name[0] != ".") == [
        "m",
        "m_transform_v4",
        "m_transform_v5",
    ]


def test_version_in_use_is_not_deleted(tmp_path: Path) -> None:
    export(tmp_path / "m")
    use = ExportedEnsemble.load(tmp_path / "m").use()
    for _ in range(4):
        export(tmp_path / "m", keep=2)
    assert [version.version for version in versions(tmp_path / "m")] == [1, 4, 5]
    use.close()
    export(tmp_path / "m", keep=2)
    assert [version.version for version in versions(tmp_path / "m")] == [5, 6]


def test_fingerprint_of_another_version_is_refused_whatever_its_manifest_says(tmp_path: Path) -> None:
    export(tmp_path / "m", content="ours")
    ensemble = ExportedEnsemble.load(tmp_path / "m")
    told = ensemble.manifest.fingerprint
    ensemble.check_fingerprint(told)
    ensemble.check_fingerprint(told.upper())
    ensemble.check_fingerprint(None)
    export(tmp_path / "m", content="theirs")
    manifest = tmp_path / "m" / "m" / "2" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(Manifest.read(manifest.parent).fingerprint, told))
    with pytest.raises(ArtifactError, match=f"m/2 has fingerprint .*, expected {told}"):
        ExportedEnsemble.load(tmp_path / "m").check_fingerprint(told)


def test_deleted_version_cannot_be_activated(tmp_path: Path) -> None:
    export(tmp_path / "m")
    first = ExportedEnsemble.load(tmp_path / "m")
    for _ in range(3):
        export(tmp_path / "m", keep=2)
    message = r"version 1 was deleted by a later export \(see --keep-versions\)\. Available: 3, 4\."
    for act in (first.activate, first.use):
        with pytest.raises(ArtifactError, match=message):
            act()
    assert ExportedEnsemble.load(tmp_path / "m").version == 4


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_failed_export_changes_nothing(tmp_path: Path, error: BaseException) -> None:
    export(tmp_path / "m")
    was = contents(tmp_path / "m")
    with pytest.raises(type(error)):
        export(tmp_path / "m", fail=error)
    assert contents(tmp_path / "m") == was


def test_next_export_removes_stale_staging(tmp_path: Path) -> None:
    export(tmp_path / "m")
    (tmp_path / "m" / ".export-dead" / "m").mkdir(parents=True)
    shutil.copytree(tmp_path / "m" / "m_transform_v1", tmp_path / "m" / "m_transform_v2")  # killed between two renames
    assert ExportedEnsemble.load(tmp_path / "m").version == 1
    assert export(tmp_path / "m", content="new") == 2
    assert (tmp_path / "m" / "m_transform_v2" / "1" / "plan").read_text() == "new"
    assert not (tmp_path / "m" / ".export-dead").exists()


def test_concurrent_exports_become_separate_versions(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(lambda i: export(tmp_path / "m", keep=9, content=str(i)), range(4)))
    assert sorted(numbers) == [1, 2, 3, 4]
    for i, number in enumerate(numbers):
        assert (tmp_path / "m" / f"m_transform_v{number}" / "1" / "plan").read_text() == str(i)


def test_export_lock_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rankline.serving.repository.ensemble, "_LOCK_TIMEOUT_S", 0.1)
    with (
        pytest.raises(ArtifactError, match=r"locked by another export for 0\.1 s"),
        publish_version(tmp_path / "m", "m", made_from={}, details={}, keep=2),
    ):
        export(tmp_path / "m")


def test_export_leaves_other_directories_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match=r"contains 'notes\.txt', which is not part of the ensemble 'm'"):
        export(tmp_path)
    with pytest.raises(ArtifactError, match=r"notes\.txt contains"):
        export(tmp_path / "notes.txt")
    assert os.listdir(tmp_path) == ["notes.txt"]  # noqa: PTH208


def test_load_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(
        ArtifactError, match="does not exist. Expected ensemble: run rankline export nowhere --repository"
    ):
        ExportedEnsemble.load(tmp_path / "nowhere")
    with pytest.raises(ArtifactError, match="contains no ensembles"):
        ExportedEnsemble.load(tmp_path)
    export(tmp_path / "m"), export(tmp_path / "m")
    with pytest.raises(ArtifactError, match=r"has no version 7\. Available: 1, 2"):
        ExportedEnsemble.load(tmp_path / "m", 7)
    shutil.copytree(tmp_path / "m" / "m", tmp_path / "m" / "n")
    with pytest.raises(ArtifactError, match="contains the ensembles m, n, expected one"):
        ExportedEnsemble.load(tmp_path / "m")


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def append(line: str) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        with path.open("a") as file:
            file.write(line)

    return change


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        *(
            (place, remove, rf"{place} (is missing from|cannot be read).* Export again\.")
            for place in ("m_transform_v1/1", "m_transform_v1/config.pbtxt", "m/1/config.pbtxt")
        ),
        ("m/config.pbtxt", append("nonsense {"), r"m/config\.pbtxt cannot be read"),
        ("m/config.pbtxt", append('backend: "python"'), "does not match version 1"),
        *(
            (place, append("import os"), f"{place} is not part of the ensemble. Remove it")
            for place in ("m/1/model.py", "m_transform_v1/triton_python_backend_stub", "m_transform_v1/1/model.py")
        ),
    ],
)
def test_load_refuses_a_damaged_ensemble(
    tmp_path: Path, place: str, change: Callable[[Path], object], message: str
) -> None:
    export(tmp_path / "m")
    change(tmp_path / "m" / place)
    with pytest.raises(ArtifactError, match=message):
        ExportedEnsemble.load(tmp_path / "m")


@pytest.mark.parametrize("pointer", [None, "nonsense {", 'name: "m"'])
def test_export_repairs_a_damaged_pointer(tmp_path: Path, pointer: str | None) -> None:
    export(tmp_path / "m")
    config = tmp_path / "m" / "m" / "config.pbtxt"
    config.unlink() if pointer is None else config.write_text(pointer)
    assert export(tmp_path / "m") == 2
    assert ExportedEnsemble.load(tmp_path / "m").version == 2
    assert before(tmp_path / "m").version == 1


@pytest.mark.parametrize(
    "place",
    ["m_transform_v3", "m_transform_v3/config.pbtxt", "m/3", "m/3/manifest.json", "m/3/config.pbtxt"],
)
def test_damaged_active_version_is_rolled_back_and_replaced(tmp_path: Path, place: str) -> None:
    path = tmp_path / "m"
    for content in "abc":
        export(path, content=content)
    remove(path / place)
    assert [version.version for version in versions(path)] == [1, 2]
    assert list(open_versions(path)[1]) == [3]
    assert before(path).version == 2
    with pytest.raises(ArtifactError, match=r"(Roll back, or e|E)xport again\."):
        ExportedEnsemble.load(path)
    assert export(path) == 4
    assert ExportedEnsemble.load(path).version == 4
    assert before(path).version == 2


def test_rollback_skips_damaged_versions(tmp_path: Path) -> None:
    path = tmp_path / "m"
    for content in "abc":
        export(path, content=content)
    (path / "m_transform_v2/1/plan").write_text("B")
    assert before(path).version == 1
    remove(path / "m_transform_v1")
    assert [version.version for version in versions(path)] == [2, 3]
    with pytest.raises(ArtifactError, match=r"versions before the active version 3 are damaged\. .*checksum"):
        before(path)


def test_rollback_without_a_known_active_version_asks_for_a_number(tmp_path: Path) -> None:
    path = tmp_path / "m"
    export(path), export(path)
    (path / "m/config.pbtxt").unlink()
    assert [version.is_active for version in versions(path)] == [False, False]
    with pytest.raises(ArtifactError, match=r"does not name the active version\. Pass --to VERSION\. Available: 1, 2"):
        before(path)


def test_version_is_added_in_place_of_one_without_a_manifest(tmp_path: Path) -> None:
    origin, path = tmp_path / "origin" / "m", tmp_path / "elsewhere" / "m"
    export(origin), export(origin)
    for number in (1, 2, 2):
        source, fingerprint = version_alone(origin, number, tmp_path / "copy")
        add_version(source, path, "m", fingerprint=fingerprint, keep=2).check_files()
        shutil.rmtree(tmp_path / "copy")
        (path / "m/2/manifest.json").unlink(missing_ok=True)


def test_formerly_active_version_is_kept_for_a_rollback(tmp_path: Path) -> None:
    for _ in range(3):
        export(tmp_path / "m", keep=2)
    ExportedEnsemble.load(tmp_path / "m", 2).activate()
    for _ in range(2):
        export(tmp_path / "m", keep=2)
    ExportedEnsemble.load(tmp_path / "m", 4).activate()
    assert export(tmp_path / "m", keep=2) == 6
    assert [version.version for version in versions(tmp_path / "m")] == [4, 5, 6]
    assert before(tmp_path / "m").version == 4  # not 5, which was gone back from


def parameter(key: str, value: str) -> str:
    return f'parameters {{\n  key: "{key}"\n  value {{\n    string_value: "{value}"\n  }}\n}}\n'


FOREIGN_LINES = [
    ("m_transform_v1", 'runtime: "../evil.so"'),
    ("m_transform_v1", 'runtime : "plan/evil.so"'),
    ("m_transform_v1", '\truntime: "plan/evil.so"'),
    ("m_transform_v1", '#\nruntime: "plan/evil.so"'),
    ("m_transform_v1", 'runti\\155e: "plan/evil.so"'),
    ("m_transform_v1", 'default_model_filename: "run.py"'),
    ("m_transform_v1", parameter("EXECUTION_ENV_PATH", "env.tar.gz")),
    ("m_transform_v1", parameter("TRITON_BATCH_STRATEGY_PATH", "evil.so")),
    ("m/1", "model_repository_agents {\n}"),
    ("m/1", 'runtime: "evil.so"'),
]


@pytest.mark.parametrize(("directory", "line"), FOREIGN_LINES)
def test_configs_that_would_run_other_code_are_refused(tmp_path: Path, directory: str, line: str) -> None:
    export(tmp_path / "m")
    with (tmp_path / "m" / directory / "config.pbtxt").open("a") as config:
        config.write(line)
    with pytest.raises(ArtifactError, match="differs from what `rankline export` writes|cannot be read"):
        ExportedEnsemble.load(tmp_path / "m")


@pytest.mark.skipif(shutil.which("awk") is None, reason="the container reads configs by awk")
@pytest.mark.parametrize(("directory", "line"), [*FOREIGN_LINES, ("m/1", ""), ("m_transform_v1", "")])
def test_container_refuses_the_same_configs(tmp_path: Path, directory: str, line: str) -> None:
    export(tmp_path / "m")
    config = (tmp_path / "m" / directory / "config.pbtxt").read_text()
    done = subprocess.run(
        ["awk", "-v", "manifest=m/1/manifest.json", "-f", CONFIG_AWK, "-"],
        input=config + line,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == (line == "")
    assert line or done.stdout == config


def test_promotion_during_load_does_not_mix_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(tmp_path / "m")
    first = ExportedEnsemble.load(tmp_path / "m")
    export(tmp_path / "m")
    read = Manifest.read
    monkeypatch.setattr(Manifest, "read", lambda path: (first.activate(), read(path))[1])
    assert ExportedEnsemble.load(tmp_path / "m").version == 2


def test_step_of_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    export(tmp_path / "m", backend="python")
    with pytest.raises(ArtifactError, match="uses the backend 'python', expected nvtabular, .*tensorflow"):
        ExportedEnsemble.load(tmp_path / "m")


def test_activate_checks_files_against_the_manifest(tmp_path: Path) -> None:
    publish_tiny(tmp_path, 10)
    damaged, added = (publish_tiny(tmp_path, offset, promote=False) for offset in (20, 30))
    file = damage(damaged, "predict")
    with pytest.raises(ArtifactError, match=f"{file.name} does not match its checksum"):
        damaged.activate()
    unlisted = tmp_path / added.steps[0] / "1/plan/more.arrow"
    unlisted.write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"more\.arrow is not in the manifest"):
        added.activate()
    assert ExportedEnsemble.load(tmp_path).version == 1
    unlisted.unlink()
    added.activate()
    assert ExportedEnsemble.load(tmp_path).version == 3


def test_ensemble_of_another_project_is_not_replaced(tmp_path: Path) -> None:
    path, one, two = (tmp_path / name for name in ("models", "one", "two"))
    refuse_other_project(path, "m", one, ["a"])  # there is none
    export(path)
    refuse_other_project(path, "m", two, ["a"])  # an earlier version does not say whose it is
    export(path, made_in="../one", inputs=["a", "b"])
    for model, inputs in ((one, ["a"]), (two, ["b", "a"]), (path / ".." / "one", ["c"])):
        refuse_other_project(path, "m", model, inputs)
    with pytest.raises(
        ArtifactError, match=r"one\. The active model requires.*a, b, but the new model requires a\. Use another"
    ):
        refuse_other_project(path, "m", two, ["a"])
    shutil.copytree(tmp_path, tmp_path.with_name("copy"), dirs_exist_ok=True)
    refuse_other_project(tmp_path.with_name("copy") / "models", "m", tmp_path.with_name("copy") / "one", ["a"])
