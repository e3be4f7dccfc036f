from importlib.metadata import version

from typer.testing import CliRunner

from rankline.cli.main import app


def test_the_version_needs_no_verb() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"rankline {version('rankline')}\n")
