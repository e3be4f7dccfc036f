"""Recipes of installed packages: dataset, operator, lowering and metric from outside of the tree."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = (Path(__file__).parents[4] / "docs/reference/extending.md").read_text(encoding="utf-8")
MODULES = ("recipes", "operators", "models", "network", "metrics")
PACKAGE = dict(zip(MODULES, re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL), strict=True))
(PROJECT,) = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
_TABLES = PROJECT[PROJECT.index("[project.entry-points") :].replace('[project.entry-points."', "[").replace('"]', "]")
ENTRY_POINTS = _TABLES.replace('"', "")  # as an installer writes them
FILES = {
    "shop/__init__.py": "",
    **{f"shop/{name}.py": code for name, code in PACKAGE.items()},
    "shop-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n",
    "shop-1.0.dist-info/entry_points.txt": ENTRY_POINTS,
    "broken-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: broken\nVersion: 2.0\n",
    "broken-2.0.dist-info/entry_points.txt": "[rankline.recipes]\nother = no_such_module.recipes\n",
    "data/sales.csv": "customer,price,bought\n" + "".join(
        f"{row % 7},{row % 13 / 4},{row % 2}\n" for row in range(200)
    ),
}  # fmt: skip
"""The package of the document, one that is broken, and data."""

COMPILED = """
import os
from pathlib import Path

import numpy as np

from rankline.workflows.compiler.compile import compile_workflow
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.nvt.compat import quiet_nvtabular

prepared = PreparedData.load(Path("work/shop/prepared"))
heldout = prepared.heldout()
with quiet_nvtabular():
    workflow = prepared.workflow().remove_inputs(["bought"])
    expected = workflow.transform(heldout.select(["customer", "price"]).to_pandas())
    plan = compile_workflow(workflow, prepared.spec.model_dtypes)
made = plan.run({name: heldout[name].to_numpy() for name in ("customer", "price")})
assert len(heldout) == 50
assert np.corrcoef(expected["price"], heldout["price"])[0, 1] > 0.999999
for name in expected:
    assert np.array_equal(made[name], expected[name].to_numpy()), name
os._exit(0)  # where the interpreter is taken down, Arrow's threads abort now and then (apache/arrow#34314)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """What an installer leaves of two packages, one of which is broken."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def run(site: Path, code: str) -> "subprocess.CompletedProcess[str]":
    before = f"import sys; sys.path.insert(0, {str(site)!r})\n"
    return subprocess.run([sys.executable, "-c", before + code], cwd=site, capture_output=True, text=True)


def cli(site: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run(site, f"sys.argv[1:] = {list(arguments)!r}; from rankline.cli.main import main; main()")


@pytest.mark.slow
def test_recipe_and_model_of_an_installed_package_are_prepared_compiled_and_trained(site: Path) -> None:
    prepared = cli(site, "prepare", "shop", "--data-dir", "data", "--valid-share", "0.25")
    assert prepared.returncode == 0, prepared.stderr
    assert "package broken: its recipes 'no_such_module.recipes' were skipped (ModuleNotFoundError" in prepared.stderr
    compiled = run(site, COMPILED)
    assert compiled.returncode == 0, compiled.stderr
    trained = cli(site, "train", "shop", "--model", "gelu", "--units", "8")
    assert trained.returncode == 0, trained.stderr
    assert "gelu replaces mlp" in trained.stderr


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("def lower(", "def unused(", "Cents (columns ['price']) cannot be compiled. Replace it, add a method `lower`"),
        ("operand=100.0", "operand=10.0", "column 'price' differs: the row {"),
    ],
)
def test_operator_that_cannot_be_served_is_refused_before_anything_is_trained(
    site: Path, right: str, wrong: str, message: str
) -> None:
    file = site / "shop/operators.py"
    file.write_text(file.read_text().replace(right, wrong))
    done = cli(site, "run", "shop", "--data-dir", "data", "--valid-share", "0.25")
    assert done.returncode == 1
    assert message in done.stderr
    assert {path.name for path in (site / "work/shop").iterdir()} == {"prepared"}


@pytest.mark.slow
def test_operator_that_no_package_names_is_refused_before_anything_is_fitted(site: Path) -> None:
    file = site / "shop-1.0.dist-info/entry_points.txt"
    file.write_text(re.sub(r"\[rankline\.operators\]\n.*\n", "", file.read_text()))
    done = cli(site, "prepare", "shop", "--data-dir", "data", "--valid-share", "0.25")
    assert done.returncode == 1
    assert (
        "a saved workflow that uses shop.operators.Cents could not be loaded. Register the class in the entry-point "
        "group " in done.stderr
    )
    assert done.stderr.rstrip().endswith('rankline.operators of an installed package: cents = "shop.operators:Cents".')


def test_entry_points_that_bring_no_new_recipe_are_named_and_cost_no_other(site: Path) -> None:
    (site / "shop/copies.py").write_text("from rankline.recipes.movielens import MLP\n", encoding="utf-8")
    reasons = {"shop.copies": r"the names \['movielens'\] are already in use", "shop.recipes:NONE": "AttributeError"}
    entries = "".join(f"other{number} = {value}\n" for number, value in enumerate(reasons))
    (site / "broken-2.0.dist-info/entry_points.txt").write_text(f"[rankline.recipes]\n{entries}", encoding="utf-8")
    code = "from rankline.recipes import available; found = available(); print(*found.recipes)\n"
    names, *problems = run(site, code + "print(*found.problems, sep='\\n')").stdout.splitlines()
    assert {"movielens", "shop"} <= set(names.split())
    assert len(problems) == len(reasons)
    for problem, (value, reason) in zip(problems, reasons.items(), strict=True):
        assert problem.startswith(f"package broken: its recipes {value!r} were skipped (")
        assert re.search(reason, problem)
