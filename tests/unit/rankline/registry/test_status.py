from pathlib import Path

import pytest

from rankline.registry.status import status_of, statuses
from rankline.serving.repository.ensemble import CONFIG
from rankline.workflows.core.errors import ArtifactError
from tests.factories.ensembles import NAME, publish_tiny
from tests.harness.commands.command_line import rankline


def test_one_ensemble_is_told_of_where_another_is_damaged(tmp_path: Path) -> None:
    repository = tmp_path / "model_repository"
    publish_tiny(repository / NAME, 10)
    broken = repository / "broken" / "broken" / CONFIG
    broken.parent.mkdir(parents=True)
    broken.write_text("?")
    with pytest.raises(ArtifactError, match="broken"):
        list(statuses(repository))
    assert (status_of(repository / NAME).name, status_of(repository / NAME).version) == (NAME, 1)
    told = rankline("status", NAME, cwd=tmp_path)
    assert (told.returncode, told.stderr) == (0, "")
    assert NAME in told.stdout


def test_what_was_not_exported_is_named(tmp_path: Path) -> None:
    publish_tiny(tmp_path / "model_repository" / NAME, 10)
    for name, reason in (("tinny", f"Did you mean {NAME!r}"), ("criteo-dlrm", "rankline export criteo-dlrm")):
        told = rankline("status", name, cwd=tmp_path)
        assert told.returncode == 1
        assert reason in told.stderr
