from collections.abc import Callable
from pathlib import Path

import pytest

from rankline.registry.activation import make_active, register, registry_uri
from rankline.registry.alias_follower import Alias, AliasFollower
from rankline.registry.mlflow_registry import Registry
from rankline.runs.store import CHAMPION
from rankline.serving.repository.ensemble import ExportedEnsemble, active_version, versions
from rankline.workflows.core.errors import ArtifactError, ConfigError
from tests.factories.ensembles import NAME, damage, publish_tiny
from tests.unit.rankline.conftest import Store

pytestmark = pytest.mark.usefixtures("nothing_registered")


class Followed:
    """A champion, and a machine elsewhere that follows it."""

    def __init__(self, store: Store, tmp_path: Path) -> None:
        self.registry, self.store = Registry(store.client), store
        self.origin, self.path = tmp_path / "origin" / NAME, tmp_path / "elsewhere" / NAME
        self.events: list[str] = []
        self.follower = AliasFollower(Alias(NAME, CHAMPION), self.path, store.uri, self.events.append)
        register(publish_tiny(self.origin, 10), store.uri)

    def promote(self, offset: int) -> ExportedEnsemble:
        ensemble = publish_tiny(self.origin, offset, promote=False)
        make_active(ensemble)
        return ensemble

    def files(self, number: int) -> Path:
        """Of a version in the artifact store."""
        (found,) = self.store.client.search_model_versions(
            f"name = '{NAME}' and tags.fingerprint = "
            f"'{ExportedEnsemble.load(self.origin, number).manifest.fingerprint}'"
        )
        return Path(found.source.removeprefix("file://")) / "ensemble"

    @property
    def active(self) -> int:
        return active_version(self.path, NAME)


@pytest.fixture
def followed(store: Store, tmp_path: Path) -> Followed:
    return Followed(store, tmp_path)


@pytest.mark.parametrize("uri", ["models:/movielens/3", "models:/a/b@c"])
def test_alias_is_written_as_mlflow_writes_it(uri: str) -> None:
    assert Alias.parse("models:/movielens@champion") == Alias("movielens", "champion")
    with pytest.raises(ConfigError, match="expected models:/NAME@ALIAS"):
        Alias.parse(uri)


def test_alias_that_does_not_exist_is_refused(store: Store, tmp_path: Path) -> None:
    follower = AliasFollower(Alias(NAME, "nobody"), tmp_path / NAME, store.uri, print)
    with pytest.raises(ArtifactError, match=rf"models:/{NAME}@nobody does not exist in .* rankline register {NAME}"):
        follower.follow()


def test_follower_fetches_and_activates_what_the_alias_names(followed: Followed) -> None:
    followed.follower.follow()
    assert followed.active == 1
    followed.promote(20)
    followed.follower.step()
    assert followed.active == 2
    make_active(ExportedEnsemble.load(followed.origin, 1))
    events = len(followed.events)
    for _ in range(3):
        followed.follower.step()
    assert followed.active == 1
    assert len(followed.events) == events + 1  # it was there, and it is told once
    for number in (1, 2):
        fetched, original = (ExportedEnsemble.load(path, number) for path in (followed.path, followed.origin))
        fetched.check_files()
        assert fetched.manifest == original.manifest
    assert registry_uri(followed.path) == followed.store.uri


@pytest.mark.slow
def test_follower_removes_old_versions_but_none_just_fetched(followed: Followed) -> None:
    for offset in range(20, 80, 10):
        followed.promote(offset)
        followed.follower.step()
    assert [one.version for one in versions(followed.path)] == [5, 6, 7]
    make_active(ExportedEnsemble.load(followed.origin, 3))
    followed.follower.step()
    assert followed.active == 3


def altered(files: Path) -> str:
    file = next(path for path in files.rglob("array-*") if path.is_file())
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    return "does not match its checksum"


def incomplete(files: Path) -> str:
    next(path for path in files.rglob("array-*") if path.is_file()).unlink()
    return "is missing from the ensemble"


def with_more(files: Path) -> str:
    (next(files.glob(f"{NAME}_*")) / "1" / "model.py").write_text("open('it ran', 'w')")
    return "is not in the manifest of the ensemble"


def with_another_manifest(files: Path) -> str:
    (manifest,) = files.glob("*/*/manifest.json")
    manifest.write_text(manifest.read_text().replace('"kind": "ensemble"', '"kind": "ensemble2"'))
    return "has fingerprint"


@pytest.mark.slow
@pytest.mark.parametrize("harm", [altered, incomplete, with_more, with_another_manifest])
def test_follower_keeps_the_champion_of_an_altered_version(followed: Followed, harm: Callable[[Path], str]) -> None:
    followed.follower.follow()
    followed.promote(20)
    expected = harm(followed.files(2))
    for _ in range(3):
        followed.follower.step()
    assert followed.active == 1
    (trouble,) = (event for event in followed.events if "cannot be followed" in event)
    assert expected in trouble
    assert [one.version for one in versions(followed.path)] == [1]
    assert not [path.name for path in followed.path.parent.iterdir() if path.name != NAME]  # nothing is left of it
    followed.promote(30)
    followed.follower.step()
    assert followed.active == 3


def test_follower_asks_again_for_files_that_are_gone(followed: Followed) -> None:
    followed.follower.follow()
    followed.promote(20)
    files = followed.files(2)
    files.rename(files.with_name("away"))
    followed.follower.step()
    assert followed.active == 1
    assert "cannot be downloaded" in followed.events[-1]
    files.with_name("away").rename(files)
    followed.follower.step()
    assert followed.active == 2


def test_follower_refuses_a_model_of_another_name(followed: Followed) -> None:
    followed.follower.follow()
    client = followed.store.client
    made = client.create_model_version(NAME, source=str(followed.path), tags={"version": "other 2", "fingerprint": "f"})
    client.set_registered_model_alias(NAME, CHAMPION, made.version)
    for _ in range(2):
        followed.follower.step()
    assert followed.active == 1
    (trouble,) = (event for event in followed.events if "cannot be followed" in event)
    assert "is not an ensemble with that name. Choose a version" in trouble


def test_follower_does_not_replace_a_version_of_its_own(followed: Followed) -> None:
    publish_tiny(followed.path, 77)
    followed.follower.step()
    assert "already has a version 1 from another export" in followed.events[-1]
    assert ExportedEnsemble.load(followed.path).manifest != ExportedEnsemble.load(followed.origin).manifest


def test_follower_does_not_activate_a_version_damaged_here(followed: Followed) -> None:
    followed.follower.follow()
    followed.promote(20)
    followed.follower.step()
    make_active(ExportedEnsemble.load(followed.origin, 1))
    damage(ExportedEnsemble.load(followed.path, 1), "predict")
    followed.follower.step()
    assert followed.active == 2
    assert "does not match its checksum" in followed.events[-1]
