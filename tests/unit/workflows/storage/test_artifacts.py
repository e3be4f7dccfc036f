"""Artifacts: whole, checked, and never in the place of something else; and files from elsewhere, read up to a limit."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.schema.model_artifact import KIND, TORCH_SCRIPT, TrainedModel
from rankline.workflows.storage import artifacts
from rankline.workflows.storage.artifacts import MANIFEST, Manifest, load_manifest, output_file, publish, write_whole
from rankline.workflows.storage.atomic import remove, staging_for
from rankline.workflows.storage.safe_yaml import compose
from rankline.workflows.storage.untrusted import read_regular
from tests.harness.process.disk_calls import DiskCalls


def make(target: Path, text: str = "one", **kwargs: str) -> Manifest:
    with publish(target, "thing", made_from=kwargs) as directory:
        (directory / "sub").mkdir()
        (directory / "sub" / "file.txt").write_text(text)
    return load_manifest(target, "thing")


def test_published_artifact_loads_with_its_files_and_origin(tmp_path: Path) -> None:
    manifest = make(tmp_path / "a", source="abc")
    assert manifest.made_from == {"source": "abc"}
    assert manifest.files["sub/file.txt"].num_bytes == 3
    assert manifest.versions["python"]


def test_equal_contents_have_equal_fingerprints_and_others_do_not(tmp_path: Path) -> None:
    first, second, third = make(tmp_path / "a"), make(tmp_path / "b"), make(tmp_path / "c", "two")
    assert first.fingerprint == second.fingerprint
    assert third.fingerprint != first.fingerprint
    assert make(tmp_path / "d", source="abc").fingerprint != first.fingerprint


def test_failed_stage_leaves_the_old_artifact_and_nothing_else(tmp_path: Path) -> None:
    old = make(tmp_path / "a")
    with pytest.raises(KeyboardInterrupt), publish(tmp_path / "a", "thing") as directory:
        (directory / "half.txt").write_text("half")
        raise KeyboardInterrupt
    assert load_manifest(tmp_path / "a", "thing") == old
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_publishing_again_replaces_the_whole_directory(tmp_path: Path) -> None:
    make(tmp_path / "a")
    with publish(tmp_path / "a", "thing") as directory:
        (directory / "other.txt").write_text("new")
    assert set(load_manifest(tmp_path / "a", "thing").files) == {"other.txt"}
    assert not (tmp_path / "a" / "sub").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("exchange", [artifacts.exchange_paths, lambda _first, _second: False])
def test_replacing_swaps_on_any_file_system(tmp_path: Path, exchange: Callable[[Path, Path], bool]) -> None:
    for name in ("staging", "target"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    artifacts._replace(tmp_path / "staging", tmp_path / "target", exchange)
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["staging"]
    assert [path.name for path in (tmp_path / "staging").iterdir()] == ["target"]


@pytest.mark.parametrize("content", ["directory", "file"])
def test_target_that_is_no_artifact_is_never_overwritten(tmp_path: Path, content: str) -> None:
    target = tmp_path / "precious"
    if content == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "mine.txt").write_text("mine")
    with pytest.raises(ArtifactError, match=r"precious contains something that is not an artifact.*another path"):
        make(target)
    assert target.exists()


@pytest.mark.parametrize("manifest", ['{"name": "a web extension"}', None])
def test_publish_never_overwrites_another_kind_or_foreign_manifest(tmp_path: Path, manifest: str | None) -> None:
    make(tmp_path / "a")
    if manifest:
        (tmp_path / "a" / MANIFEST).write_text(manifest)
    with (
        pytest.raises(ArtifactError, match=r"which would be replaced by a new other\. Choose another"),
        publish(tmp_path / "a", "other"),
    ):
        pytest.fail("the stage must not even start")
    assert (tmp_path / "a/sub/file.txt").read_text() == "one"


def test_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    make(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    make(tmp_path / "link", "two")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real/sub/file.txt").read_text() == "two"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_file_that_is_not_of_the_artifact_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "a")
    (tmp_path / "a" / "extra").mkdir()
    (tmp_path / "a" / "extra" / "model.py").touch()
    with pytest.raises(ArtifactError, match=r"extra/model\.py is not in the manifest of the thing"):
        load_manifest(tmp_path / "a", "thing")


@pytest.mark.parametrize("place", ["sub/file.txt", "sub", "more"])
def test_links_in_an_artifact_are_refused(tmp_path: Path, place: str) -> None:
    """What they lead to can be changed after it was looked at, and may be anybody's."""
    make(tmp_path / "a")
    link, elsewhere = tmp_path / "a" / place, tmp_path / "elsewhere"
    if link.exists():
        link.rename(elsewhere)
    link.symlink_to(elsewhere)
    with pytest.raises(ArtifactError, match=rf"{link} is a symbolic link, but the thing may contain only files"):
        load_manifest(tmp_path / "a", "thing")


@pytest.mark.parametrize("place", [MANIFEST, "sub/file.txt", "more"])
def test_fifo_in_an_artifact_is_refused_at_once(tmp_path: Path, place: str) -> None:
    make(tmp_path / "a")
    (tmp_path / "a" / place).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "a" / place)
    with pytest.raises(ArtifactError, match="not a regular file"):
        load_manifest(tmp_path / "a", "thing")


def test_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_whole(tmp_path / "deep" / "a.json", b"one")
    write_whole(tmp_path / "deep" / "a.json", b"two")
    assert (tmp_path / "deep" / "a.json").read_bytes() == b"two"
    (tmp_path / "deep" / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "deep" / "directory", b"three")
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["a.json", "directory"]


def test_result_keeps_links_and_permissions(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("before")
    (tmp_path / "kept").chmod(0o600)
    (tmp_path / "link").symlink_to("kept")
    with output_file(tmp_path / "link") as file:
        file.write_text("after")
        assert (tmp_path / "kept").read_text() == "before"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "kept").read_text() == "after"
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o600


def test_result_goes_through_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with output_file(tmp_path / "pipe") as file:
        file.write_text("through")
        assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


@given(st.binary(min_size=1, max_size=64), st.data())
def test_changed_byte_is_found(tmp_path_factory: pytest.TempPathFactory, content: bytes, data: st.DataObject) -> None:
    target = tmp_path_factory.mktemp("artifact") / "a"
    with publish(target, "thing") as directory:
        (directory / "data").write_bytes(content)
    position = data.draw(st.integers(0, len(content) - 1))
    damaged = bytearray(content)
    damaged[position] ^= data.draw(st.integers(1, 255))
    (target / "data").write_bytes(bytes(damaged))
    with pytest.raises(ArtifactError, match="does not match its checksum"):
        load_manifest(target, "thing")


def test_missing_or_shorter_file_is_named(tmp_path: Path) -> None:
    make(tmp_path / "a")
    (tmp_path / "a/sub/file.txt").write_text("on")
    with pytest.raises(ArtifactError, match=r"file\.txt has 2 bytes, expected 3"):
        load_manifest(tmp_path / "a", "thing")
    (tmp_path / "a/sub/file.txt").unlink()
    with pytest.raises(ArtifactError, match=r"file\.txt is missing"):
        load_manifest(tmp_path / "a", "thing")


def test_wrong_kind_names_both_kinds(tmp_path: Path) -> None:
    make(tmp_path / "a")
    with pytest.raises(ArtifactError, match="contains thing, expected other"):
        load_manifest(tmp_path / "a", "other")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "cannot be read"),
        (json.dumps({"format_version": 99, "kind": "thing", "fingerprint": "", "files": {}}), "format version 99"),
        (
            json.dumps({"format_version": 1, "kind": "a\nb", "fingerprint": "", "files": {}}),
            "is not a single line of text",
        ),
        (" " * (9 << 20), "it has more than 8388608 bytes"),
    ],
)
def test_unreadable_manifest_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ArtifactError, match=message):
        load_manifest(tmp_path, "thing")


def test_missing_directory_says_which_stage_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "CALLED", {})
    with pytest.raises(ArtifactError, match=r"shop does not exist.*run rankline export shop --repository /"):
        load_manifest(tmp_path / "shop", "ensemble")
    with pytest.raises(ArtifactError, match=rf"run rankline prepare shop --work-dir {tmp_path}\."):
        load_manifest(tmp_path / "shop/prepared", "prepared-data")
    artifacts.CALLED["shop"] = "my shop.yaml"
    with pytest.raises(ArtifactError, match=rf"run rankline train 'my shop\.yaml' --work-dir {tmp_path}\."):
        load_manifest(tmp_path / "shop/model", "trained-model")


def fill(target: Path) -> None:
    with publish(target, "thing") as directory:
        (directory / "sub").mkdir()
        (directory / "sub" / "file.txt").write_text("one")


def test_artifact_is_on_the_disk_before_the_old_one_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "a")
    calls = DiskCalls(monkeypatch)
    fill(tmp_path / "a")
    staging = calls.made[calls.index("rename")][1]
    names = ("", "/sub", "/sub/file.txt", "/manifest.json")
    assert calls.synced(0, calls.index("rename")) == {f"{staging}{name}" for name in names}
    assert calls.synced(calls.index("rename"), calls.index("remove")) == {str(tmp_path)}


def test_file_is_on_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = DiskCalls(monkeypatch)
    write_whole(tmp_path / "a", b"one")
    staging = calls.made[calls.index("rename")][1]
    assert calls.made == [("sync", staging), ("rename", staging), ("sync", str(tmp_path))]


_PUBLISHER = """
import os, signal, sys
from pathlib import Path
from rankline.workflows.storage.artifacts import publish
with publish(Path(sys.argv[1]), "thing") as directory:
    (directory / "large").write_bytes(bytes(1000))
    if len(sys.argv) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
    print(flush=True)
    sys.stdin.read()
"""


def test_next_publish_removes_the_staging_of_a_killed_one_only(tmp_path: Path) -> None:
    target = tmp_path / "[a]"  # a name that a pattern would take for another
    killed = subprocess.run([sys.executable, "-c", _PUBLISHER, target, "killed"], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    with subprocess.Popen(
        [sys.executable, "-c", _PUBLISHER, target], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        assert len(list(tmp_path.iterdir())) == 1  # its own
        fill(target)
        assert len(list(tmp_path.iterdir())) == 2
        other.stdin.close()
    assert other.returncode == 0
    assert set(load_manifest(target, "thing").files) == {"large"}
    assert list(tmp_path.iterdir()) == [target]


def test_removal_that_is_cut_off_leaves_nothing_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        remove(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with staging_for(tmp_path / "a") as staging:
        assert list(tmp_path.iterdir()) == [staging]


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path.name)],
    ids=["a FIFO", "a directory", "a device", "a link to itself"],
)
def test_path_that_is_no_regular_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        read_regular(tmp_path / "file", 100)


def test_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(path)
    assert read_regular(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_regular(path, 4)


LAUGHS = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8))])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LAUGHS, "its aliases expand to too many characters"),
        ("&a [*a]", "its aliases expand to too many characters"),
        ("a: " + "9" * 101, "a number has more than 100 digits"),
        ("a: 1" + ":59" * 101, "a number has more than 100 digits"),
        ("[" + "[]," * 50_000 + "]", "more than 100000 lines and values"),
        ("a:\n" * 100_001, "more than 100000 lines and values"),
    ],
)
def test_yaml_that_expands_to_too_much_is_refused(text: str, reason: str) -> None:
    with pytest.raises(yaml.YAMLError, match=reason):
        compose(text)


@pytest.mark.parametrize("text", ["a: [1, 2]", "a: &a {b: 1}\nc: *a", 'a: "' + "9" * 1_000 + '"'])
def test_compose_builds_what_pyyaml_does(text: str) -> None:
    assert compose("") is None
    assert yaml.serialize(compose(text)) == yaml.serialize(yaml.compose(text, yaml.SafeLoader))


DETAILS = {"run_id": "r", "tracking_uri": "sqlite:///x", "metrics": {"valid_auc": 0.7}}


def artifact(path: Path, **details: str) -> Path:
    with publish(path, KIND, details={**DETAILS, **details}) as staging:
        (staging / "model.pt").write_bytes(b"model")
    return path


def test_model_artifact_names_its_format_and_path(tmp_path: Path) -> None:
    model = TrainedModel.load(artifact(tmp_path / "m", format=TORCH_SCRIPT))
    assert (model.format, model.model_path) == ("model.pt", tmp_path / "m" / "model.pt")
    with pytest.raises(ArtifactError, match=r"contains model\.pt, expected model\.savedmodel"):
        _ = model.saved_model


def test_format_of_another_package_is_taken_as_it_is(tmp_path: Path) -> None:
    assert TrainedModel.load(artifact(tmp_path / "m", format="model.jax")).format == "model.jax"


def test_manifest_without_its_details_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"manifest\.json lacks format\. Train the model again"):
        TrainedModel.load(artifact(tmp_path / "m"))
