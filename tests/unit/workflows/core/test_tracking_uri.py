from pathlib import Path

import pytest

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.tracking_uri import (
    file_of,
    found_uri,
    kept_uri,
    uri_of_file,
    with_credentials,
    without_credentials,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:s3cret@host:5000/mlflow", "http://host:5000/mlflow"),
        ("https://s3cret@host", "https://host"),
        ("postgresql+psycopg://u:p@s3cret@host/db", "postgresql+psycopg://host/db"),
        ("postgresql://host/db?user=u&password=s3cret", "postgresql://host/db?"),
        (
            "API request to http://u:s3cret@host/api and http://v:s3cret@other",
            "API request to http://host/api and http://other",
        ),
        ("sqlite:////home/a@b/mlflow.db", "sqlite:////home/a@b/mlflow.db"),
        ("http://host/a@b", "http://host/a@b"),
        ("databricks", "databricks"),
    ],
)
def test_credentials_are_not_shown_and_used_where_the_environment_has_them(
    text: str, shown: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert without_credentials(text) == shown
    if " " not in text:
        assert found_uri(kept_uri(text, tmp_path), tmp_path) == shown
        monkeypatch.setenv("MLFLOW_TRACKING_URI", text)
        assert with_credentials(shown) == text
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://u:p@elsewhere")
    assert with_credentials(shown) == shown


@pytest.mark.parametrize("artifact", ["work/t/model", "model_repository/t", "."])
def test_artifact_finds_the_store_of_its_own_project(tmp_path: Path, artifact: str) -> None:
    for project in ("a", "b c#d"):
        (tmp_path / project / artifact).mkdir(parents=True, exist_ok=True)
        (tmp_path / project / "work").mkdir(exist_ok=True)
        (tmp_path / project / "work" / "mlflow.db").touch()
    original = uri_of_file(tmp_path / "a" / "work" / "mlflow.db")
    kept = kept_uri(original, tmp_path / "a" / artifact)
    assert str(tmp_path) not in kept
    assert found_uri(kept, tmp_path / "a" / artifact) == original
    copied = uri_of_file(tmp_path / "b c#d" / "work" / "mlflow.db")
    assert found_uri(kept, tmp_path / "b c#d" / artifact) == copied
    assert found_uri(original, tmp_path / "b c#d" / artifact) == copied  # as earlier versions kept it
    assert found_uri(original, tmp_path / "elsewhere") == original
    assert file_of(copied) == tmp_path / "b c#d" / "work" / "mlflow.db"


def test_artifact_without_a_store_keeps_none(tmp_path: Path) -> None:
    assert kept_uri("", tmp_path) == found_uri("", tmp_path) == ""


@pytest.mark.parametrize("name", ["a%41", "x?y", "%2e"])
def test_path_that_mlflow_reads_otherwise_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"which MLflow does not support\. Rename the directory"):
        uri_of_file(tmp_path / name / "mlflow.db")
    assert file_of(uri_of_file(tmp_path / "100% a&b" / "mlflow.db")) == tmp_path / "100% a&b" / "mlflow.db"
