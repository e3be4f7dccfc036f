"""The serving image's entry point on small ensembles: new versions, rollbacks, broken versions and kills under load.

Each scenario runs with the network for itself, since the image's ports are fixed.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bench.harness.closed_loop import asking
from rankline.serving.client import Client, ClientConfig
from rankline.serving.repository.ensemble import MANIFEST, ExportedEnsemble
from rankline.workflows.storage.artifacts import files_below, sha256_of
from tests.factories import ensembles as tiny_ensembles
from tests.factories.ensembles import NAME, damage, point_to, publish_tiny
from tests.harness.containers.image_on_host import GRPC, RunningImage, in_own_network, make_image, running_image
from tests.harness.process.waiting import wait_until

if __name__ == "__main__":
    tiny_ensembles.NAME = NAME = "short_v1"  # which looks like a step of version 1
ROWS = pa.table({"x": np.zeros(1, np.int64)})
KEEP = 3  # the default of --keep-versions
NUM_KILLS = int(os.environ.get("RANKLINE_TEST_KILLS", "2"))


def offset_of(client: Client) -> int:
    """Which version answers: a tiny ensemble answers key 0 with its offset."""
    return int(client.predict(ROWS)[0])


@contextmanager
def serving(directory: Path, num_versions: int = 1) -> Iterator[tuple[RunningImage, Path, Client]]:
    """The image with a repository of some versions, whose offsets are ten times their numbers."""
    repository = directory / "models"
    for number in range(1, num_versions + 1):
        publish_tiny(repository, 10 * number, keep=KEEP)
    (directory / "image").mkdir()
    with running_image(directory / "image", repository) as image:
        wait_until(lambda: image.is_healthy)
        with Client(GRPC, NAME) as client:
            yield image, repository, client


@contextmanager
def under_load(config: ClientConfig | None = None) -> Iterator[None]:
    """Two clients ask without a pause, and none of their requests may fail."""
    with asking(GRPC, NAME, ROWS, config or ClientConfig(retry_lost=False)) as asked:
        yield
    assert not asked.failures, asked.failures[:3]
    assert asked.num_answers > 100


def kill_server(image: RunningImage) -> None:
    server = image.server
    assert server is not None
    server.kill()
    server.wait()


# Scenarios


def exports_and_rollbacks_fail_no_request(directory: Path) -> None:
    """Eight exports with the default retention, four rollbacks and two broken versions in between."""
    with serving(directory) as (image, repository, client), under_load():
        for number in range(2, 10):
            version = publish_tiny(repository, 10 * number, keep=KEEP)
            wait_until(lambda number=number: offset_of(client) == 10 * number)
            if number % 2:
                ExportedEnsemble.load(repository, number - 1).activate()
                wait_until(lambda number=number: offset_of(client) == 10 * (number - 1))
            if number % 4 == 0:
                broken = publish_tiny(repository, 10 * number + 5, keep=KEEP, promote=False)
                damage(broken, "predict")
                point_to(broken)
                wait_until(lambda: "does not match its checksum" in image.said[-1])
                assert offset_of(client) == 10 * number
                assert image.is_healthy
                version.activate()
                shutil.rmtree(repository / NAME / str(broken.version))
        copies = directory / "image/state/models"
        wait_until(lambda: len(list(copies.glob(f"{NAME}_*"))) == 2)  # the steps of one version


def only_what_export_writes_is_served(directory: Path) -> None:
    with serving(directory) as (image, repository, client), under_load():
        for number, (name, (change, reason)) in enumerate(CHANGES.items(), start=2):
            version = publish_tiny(repository, 10 * number, promote=False, keep=50)
            change(version)
            point_to(version)
            refused = f"version {number} cannot be served, version 1 stays active: "
            wait_until(lambda refused=refused: image.said[-1].startswith(refused))
            assert reason in image.said[-1], name
            assert offset_of(client) == 10, name
            assert image.is_healthy


def a_version_may_be_copied_while_it_is_active(directory: Path) -> None:
    with serving(directory) as (image, repository, client):
        with under_load():
            version = publish_tiny(repository, 20, promote=False)
            plan = repository / f"{NAME}_predict_v2/1/plan"
            plan.rename(repository / "elsewhere")
            point_to(version)
            wait_until(lambda: "is missing" in image.said[-1])
            (repository / "elsewhere").rename(plan)
            wait_until(lambda: offset_of(client) == 20)
            # The manifest does not list the library, so it is not copied.
            version = publish_tiny(repository, 30, promote=False)
            (repository / f"{NAME}_predict_v3/1/libtriton_nvtabular.so").write_bytes(b"")
            point_to(version)
            wait_until(lambda: offset_of(client) == 30)
            # Unlike rglob, os.walk passes over the directories of the old version, which are being removed.
            copied = [name for _, _, names in os.walk(directory / "image/state") for name in names]
            assert copied
            assert not [name for name in copied if name.endswith(".so")]
        # An export into an emptied repository counts from 1 again: version 3 is another one now.
        shutil.rmtree(repository)
        for offset in (40, 50, 60):
            publish_tiny(repository, offset)
        wait_until(lambda: offset_of(client) == 60)
        # One that cannot be loaded, though its files are whole, leaves the one of its number.
        shutil.rmtree(repository)
        for offset in (70, 80, 90):
            version = publish_tiny(directory / "models.new", offset)
        for plan in version.path.rglob("plan.json"):
            plan.write_text("{}")
        list_files(version)
        version.path.rename(repository)
        wait_until(lambda: any("exited while loading it" in line for line in image.said))
        wait_until(lambda: image.is_healthy and offset_of(client) == 60)


def a_state_that_cannot_be_written_ends_nothing(directory: Path) -> None:
    with serving(directory) as (image, repository, client), under_load():
        blocked = directory / "image/state/pointer"
        blocked.unlink()
        blocked.mkdir()
        publish_tiny(repository, 20)
        wait_until(lambda: "config.pbtxt cannot be copied to" in image.said[-1])
        assert (offset_of(client), image.is_healthy) == (10, True)
        blocked.rmdir()
        wait_until(lambda: offset_of(client) == 20)


def a_start_with_a_broken_version_serves_another(directory: Path) -> None:
    """The version before it: a later one was never promoted."""
    repository = directory / "models"
    publish_tiny(repository, 10)
    damage(publish_tiny(repository, 20), "transform")
    publish_tiny(repository, 30, promote=False)
    with serving(directory, 0) as (image, _, client):
        assert offset_of(client) == 10
        assert "version 2 cannot be served" in image.said[0]
        ExportedEnsemble.load(repository, 3).activate()
        wait_until(lambda: offset_of(client) == 30)


def killed_processes_come_back_and_clients_lose_nothing(directory: Path) -> None:
    """Clients try again, as they do by default."""
    with serving(directory, 2) as (image, repository, client), under_load(ClientConfig()):
        for _ in range(NUM_KILLS):
            kill_server(image)
            wait_until(lambda: image.is_healthy)
            assert offset_of(client) == 20
        # The copy serves on when the active version is broken and the served one has been deleted.
        broken = publish_tiny(repository, 30, promote=False)
        damage(broken, "predict")
        point_to(broken)
        wait_until(lambda: "version 2 stays active" in image.said[-1])
        shutil.rmtree(repository / NAME / "2")
        kill_server(image)
        wait_until(lambda: image.is_healthy and offset_of(client) == 20)
        for offset in range(40, 40 + NUM_KILLS):
            publish_tiny(repository, offset)
            image.kill_all()
            image.start()
            wait_until(lambda offset=offset: image.is_healthy and offset_of(client) == offset)
        # A version that ended the container while it was loaded is not the first to be loaded again.
        version = publish_tiny(repository, 60)
        wait_until(lambda: offset_of(client) == 60)
        image.kill_all()
        interrupted = f"{version.version} {sha256_of(manifest_of(version))}\n"
        (directory / "image/state/trying").write_text(interrupted)
        image.start()
        wait_until(lambda: image.is_healthy and offset_of(client) == offset)
        assert f"version {version.version} cannot be served: the container exited while loading it" in image.said


# What is done to a version, and why it is refused


def edit_config(version: ExportedEnsemble, new: str, old: str = 'backend: "nvtabular"') -> None:
    """Change a step's config, and list it in the manifest as it is now."""
    config = version.path / f"{NAME}_predict_v{version.version}/config.pbtxt"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new, 1))
    list_files(version)


def add_file(version: ExportedEnsemble, name: str) -> None:
    """Add a file to a step, and list it in the manifest."""
    (version.path / f"{NAME}_predict_v{version.version}" / name).write_bytes(b"\x7fELF")
    list_files(version)


def list_files(version: ExportedEnsemble) -> None:
    manifest = json.loads(manifest_of(version).read_text())
    own = {name: file for name, file in files_below(version.path) if f"_v{version.version}/" in name}
    own |= {name: version.path / name for name in manifest["files"]}
    manifest["files"] = {
        name: {"sha256": sha256_of(file), "num_bytes": file.stat().st_size} for name, file in own.items()
    }
    manifest_of(version).write_text(json.dumps(manifest, indent=2) + "\n")


def manifest_of(version: ExportedEnsemble) -> Path:
    return version.path / NAME / str(version.version) / MANIFEST


def edit_manifest(version: ExportedEnsemble, old: str, new: str) -> None:
    text = manifest_of(version).read_text()
    assert old in text
    manifest_of(version).write_text(text.replace(old, new, 1))


def claim_bytes(version: ExportedEnsemble, num_bytes: int) -> None:
    manifest = json.loads(manifest_of(version).read_text())
    manifest["files"][f"{NAME}_predict_v{version.version}/1/plan/plan.json"]["num_bytes"] = num_bytes
    manifest_of(version).write_text(json.dumps(manifest, indent=2) + "\n")


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


NOT_OURS = "differs from what rankline export writes"
CHANGES: dict[str, tuple[Callable[[ExportedEnsemble], object], str]] = {
    "another backend": (lambda version: edit_config(version, 'backend: "python"'), NOT_OURS),
    "code in a runtime": (
        lambda version: edit_config(version, 'backend: "nvtabular"\nrunti\\155e: "plan/evil.so"'),
        NOT_OURS,
    ),
    "a library that the manifest lists": (lambda version: add_file(version, "1/batchstrategy.so"), NOT_OURS),
    "a library beside the config": (lambda version: add_file(version, "libtriton_nvtabular.so"), NOT_OURS),
    "another manifest": (
        lambda version: edit_config(version, '"/dev/zero"', f'"{NAME}/{version.version}/manifest.json"'),
        NOT_OURS,
    ),
    "many instances": (lambda version: edit_config(version, "count: 1000000000", "count: 1"), NOT_OURS),
    "an octal size": (lambda version: edit_manifest(version, '"num_bytes": ', '"num_bytes": 0'), NOT_OURS),
    "more than there is room for": (lambda version: claim_bytes(version, 10**12), "has too little space for it"),
    "a path that leads out": (lambda version: edit_manifest(version, f'"{NAME}_predict', '"../predict'), NOT_OURS),
    "a FIFO as manifest": (lambda version: replace_by_fifo(manifest_of(version)), "cannot be read"),
    "a damaged file": (lambda version: damage(version, "transform"), "does not match its checksum"),
}
"""What is done to a version, and why it is refused; `test_ensemble.py` tries more configs."""
SCENARIOS: dict[str, Callable[[Path], None]] = {
    scenario.__name__: scenario
    for scenario in (
        exports_and_rollbacks_fail_no_request,
        only_what_export_writes_is_served,
        a_version_may_be_copied_while_it_is_active,
        a_state_that_cannot_be_written_ends_nothing,
        a_start_with_a_broken_version_serves_another,
        killed_processes_come_back_and_clients_lose_nothing,
    )
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    done = in_own_network(f"tests.integration.server.{Path(__file__).stem}", name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_unreadable_key_is_named_before_the_start(tmp_path: Path) -> None:
    make_image(tmp_path)
    command = [tmp_path / "bin/serve", tmp_path, f"--grpc-server-key={tmp_path}/server.key"]
    done = subprocess.run(command, env={"PATH": f"{tmp_path}/bin"}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{tmp_path}/server.key (--grpc-server-key) does not exist or is not readable" in done.stderr


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="rankline-image-") as root:
        SCENARIOS[sys.argv[1]](Path(root))
