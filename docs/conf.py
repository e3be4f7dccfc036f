"""The site of the documents: `make docs`.

Sphinx with MyST, since it reads the same Markdown that people read beside the code, checks every name and link, makes
pages of docstrings, and searches without a server. MkDocs has had no release since 2024; Zensical has no reference of
Python modules of its own yet.

What the program knows is written by the program: a line `<!-- made by NAME -->` of a page becomes what the function
with that name in `docs/from_program.py` returns. `<!-- text of FILE -->` becomes a file of the folder above.
"""

import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE))
import from_program  # noqa: E402

project = "Rankline"
author = "the authors of Rankline"
copyright = author
version = release = version_of("rankline")
html_title = f"Rankline {version}"
html_theme = "furo"
html_show_sphinx = False
html_copy_source = False
html_domain_indices = False  # of modules: users call one
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
copybutton_prompt_text = "$ "
smartquotes = False  # it turns --help into –help
highlight_language = "text"  # of blocks that name none, such as outputs
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nitpicky = True  # an unresolved name is an error, because `make docs` turns warnings into errors
autodoc_typehints = "none"  # docstrings say what counts of types: shapes, units, what None means
napoleon_attr_annotations = False
autodoc_default_options = {"members": True, "member-order": "bysource"}
# Names in docstrings are Markdown, as in all of Rankline: code in single backticks.
default_role = "code"
exclude_patterns = ["notebook.ipynb"]
_MADE = re.compile(r"<!-- made by (\w+) -->")
_TEXT = re.compile(r"<!-- text of (\S+) -->")
_ABOVE = re.compile(r"\]\((?:\.\./)*(README|CONTRIBUTING|CHANGELOG|SECURITY)\.md")
_PAGES = {
    "README": "index",
    "CONTRIBUTING": "project/contributing",
    "CHANGELOG": "project/changelog",
    "SECURITY": "project/security",
}


def _fill(_app: Any, page: str, source: list[str]) -> None:
    text = _TEXT.sub(lambda found: (_HERE.parent / found[1]).read_text(encoding="utf-8"), source[0])
    up = "../" * page.count("/")
    text = _ABOVE.sub(lambda found: f"]({up}{_PAGES[found[1]]}.md", text).replace("](docs/", f"]({up}")
    source[0] = _MADE.sub(lambda found: getattr(from_program, found[1])(), text)


def _repair(_app: Any, _page: str, _template: str, context: dict[str, Any], _document: Any) -> None:
    """Add what screen readers and keyboards need: levels of headings, and focus for code and tables that scroll."""
    for part, plain, repaired in (
        ("body", "<pre>", '<pre tabindex="0">'),
        ("body", '<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),
        ("furo_navigation_tree", 'role="heading"', 'role="heading" aria-level="2"'),
    ):
        if part in context:
            context[part] = context[part].replace(plain, repaired)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _fill)
    app.connect("html-page-context", _repair, priority=900)  # after the theme
