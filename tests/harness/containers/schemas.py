"""Files of hosts and tools, held against the schemas that come with check-jsonschema."""

from pathlib import Path

import pytest


def schema_faults(schema: str, *files: Path) -> str:
    """What check-jsonschema says of files that do not follow a schema of its own; in this process, which is quick."""
    check = pytest.importorskip("check_jsonschema.cli", reason="pip install check-jsonschema")
    from click.testing import CliRunner

    done = CliRunner().invoke(check.main, ["--builtin-schema", schema, *map(str, files)])
    return done.output if done.exit_code else ""
