"""The site of the documents, built as `make docs` does: every warning is an error there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rankline.cli.main import app
from rankline.training.evaluation import METRICS
from rankline.training.models import MODELS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(ROOT / "docs"), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_site_lists_every_verb_metric_and_model(site: Path) -> None:
    command_line = text_of(site / "reference" / "command-line.html")
    missing = {command.name for command in app.registered_commands if f'id="{command.name}"' not in command_line}
    metrics = text_of(site / "reference" / "metrics.html")
    assert missing == set()
    assert [name for name in METRICS if f">{name}<" not in metrics] == []
    models = text_of(site / "reference" / "models.html")
    assert [name for name in MODELS if f">{name}<" not in models] == []
    unbuilt = text_of(ROOT / "docs" / "reference" / "models.md").partition("<!-- made by models -->")[0]
    assert [name for name in MODELS if not re.search(rf"\b{name}\b", unbuilt)] == []


def test_site_is_self_contained(site: Path) -> None:
    # Scripts, pictures, styles and fonts; a link that a reader follows may lead anywhere.
    taken = re.compile(r"""<(script|img|iframe|link)\b[^>]+(src|rel="stylesheet".+href)="https?:|url\(['"]?https?:""")
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 20
    assert [page.name for page in pages if taken.search(text_of(page))] == []


def test_site_pictures_have_texts(site: Path) -> None:
    pictures = [tag for page in site.rglob("*.html") for tag in re.findall(r"<img[^>]*>", text_of(page))]
    assert pictures
    assert [tag for tag in pictures if not re.search(r'alt="[^"]{8,}"', tag)] == []
