"""What verbs say at their end."""

from pathlib import Path

import pytest

from rankline.cli.export import say_active
from tests.factories.ensembles import publish_tiny


def test_an_export_ends_in_which_version_answers_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiny"
    first, second = publish_tiny(path, 0), publish_tiny(path, 1, promote=False)
    say_active(first)
    say_active(second, "it is slow")
    second.activate()
    say_active(second, "it is slow")
    assert capsys.readouterr().out.replace(f"{path}: ", "").splitlines() == [
        "version 1 is active",
        "version 1 stays active: it is slow. To let the new one answer: rankline promote tiny --to 2",
        "version 2 is active",
    ]
