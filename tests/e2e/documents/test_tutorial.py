"""docs/guide/tutorial.md, from its first snippet to its last command, with fewer rows and epochs."""

import re
from pathlib import Path

import numpy as np
import pyarrow.csv as pa_csv
import pytest

from tests.harness.commands.command_line import commands, rankline, served, shortened, started, typed

DOCUMENT = (Path(__file__).parents[3] / "docs" / "guide" / "tutorial.md").read_text(encoding="utf-8")
MAKE_TABLE, ASK = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
SERVE = "rankline serve rankline.yaml --watch"
SHORTER = {"rankline run rankline.yaml": "--epochs 1 --batch-sizes 1", "rankline train": "--epochs 1"}
ROWS = 4_000


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Where everything was run, in the order of the document, and what each command said."""
    path = tmp_path_factory.mktemp("tutorial")
    table = MAKE_TABLE.replace("20_000", str(ROWS)).replace('"clicks.csv"', repr(str(path / "clicks.csv")))
    exec(compile(table, "docs/guide/tutorial.md", "exec"), {})
    outputs = {}
    for command in commands(DOCUMENT):
        if command == SERVE:
            outputs[command] = asked(path)
        elif "--if-better" in command:  # after one epoch it may not be
            done = rankline(*command.split()[1:], cwd=path)
            assert done.returncode in (0, 1), done.stderr
            outputs[command] = done.stdout
        else:
            outputs[command] = typed(shortened(command, SHORTER), path)
    return path, outputs


def asked(path: Path) -> str:
    """What the document's client prints while the document's server runs."""
    with served(SERVE, path) as (_, address):
        (path / "ask.py").write_text(ASK.replace("127.0.0.1:8001", address), encoding="utf-8")
        with started("python ask.py", path) as program:
            answer, _ = program.communicate()
            assert program.returncode == 0, answer
    return answer


def test_row_has_one_score_however_it_is_asked_for(said: tuple[Path, dict[str, str]]) -> None:
    path, outputs = said
    scored = pa_csv.read_csv(path / "scored.csv")["score"].to_numpy()
    served = np.array(re.findall(r"\d\.\d+(?:e-\d+)?", outputs[SERVE]), dtype=float)
    assert len(scored) == ROWS
    np.testing.assert_allclose(served.ravel(), scored[:5], atol=1e-5)


def test_if_better_compares_versions_and_activates_one(said: tuple[Path, dict[str, str]]) -> None:
    _, outputs = said
    assert "clicks" in outputs["rankline status"]
    assert len({*re.findall(r"^[0-9a-f]{8} ", outputs["rankline runs"], re.MULTILINE)}) == 2
    assert re.search(r"better|stays active", outputs["rankline export rankline.yaml --if-better auc"])
