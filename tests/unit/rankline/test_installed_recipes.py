"""Recipes of installed packages: dataset, operator, lowering and metric from outside of the tree."""

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "shop/__init__.py": "",
    "shop/operators.py": '''
from serving.lowerings.expressions import apply
from serving.plan.steps import Arithmetic, Cast, Fill
from workflows.upstream import ops


class Cents(ops.Operator):
    def transform(self, col_selector, df):
        return (df[col_selector.names].fillna(0.0) * 100.0).astype("float32")

    @property
    def output_dtype(self):
        return "float32"

    def lower(self, selector, columns):
        return {name: self._cents(columns[name]) for name in selector.names}

    def _cents(self, column):
        cents = apply(Arithmetic(function="multiply", operand=100.0), apply(Fill(value=0.0), column))
        return apply(Cast(dtype="float32"), cents)
''',
    "shop/metrics.py": '''
from training.metrics import Metric


def brier(rows):
    return rows.mean((rows.scores - rows.labels) ** 2)


BRIER = Metric(measure=brier, title="Brier score")
''',
    "shop/recipes.py": '''
import pyarrow.csv as csv

from rankline.recipes import Recipe
from training.config import TrainConfig
from workflows.datasets.base import Dataset
from workflows.datasets.raw import RawData, fingerprint_of
from workflows.heads import Head


def read(directory):
    path = directory / "sales.csv"
    return RawData(rows=csv.read_csv(path), fingerprint=fingerprint_of([path]))


def graph(raw, config, rows):
    from shop.operators import Cents
    from workflows.operators import Categorify, GreaterThan
    from workflows.upstream import nvt

    ids = ["customer"] >> Categorify(freq_threshold=config.frequency_threshold)
    return nvt.Workflow(ids + (["price"] >> Cents()) + (["bought"] >> GreaterThan(0)))


SALES = Dataset(name="sales", read=read, graph=graph, inputs=("customer", "price"), heads=(Head("bought"),))
RANKING = Recipe(name="shop", summary="What customers buy", dataset=SALES, train=TrainConfig(epochs=1))
''',
    "shop-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n",
    "shop-1.0.dist-info/entry_points.txt": (
        "[rankline.recipes]\nshop = shop.recipes\n\n[rankline.metrics]\nbrier = shop.metrics:BRIER\n\n"
        "[rankline.operators]\ncents = shop.operators:Cents\n"
    ),
    "broken-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: broken\nVersion: 2.0\n",
    "broken-2.0.dist-info/entry_points.txt": "[rankline.recipes]\nother = no_such_module.recipes\n",
    "data/sales.csv": "customer,price,bought\n" + "".join(
        f"{row % 7},{row % 13 / 4},{row % 2}\n" for row in range(200)
    ),
}  # fmt: skip

COMPILED = """
import os
from pathlib import Path

import numpy as np

from serving.compile import compile_workflow
from workflows.prepared import PreparedData
from workflows.upstream import quiet_nvtabular

prepared = PreparedData.load(Path("work/shop/prepared"))
heldout = prepared.heldout()
with quiet_nvtabular():
    workflow = prepared.workflow().remove_inputs(["bought"])
    expected = workflow.transform(heldout.select(["customer", "price"]).to_pandas())
    plan = compile_workflow(workflow, prepared.spec.model_dtypes)
made = plan.run({name: heldout[name].to_numpy() for name in ("customer", "price")})
assert len(heldout) == 50
assert expected["price"].tolist() == (heldout["price"].to_numpy() * 100).tolist()
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


def test_a_recipe_of_an_installed_package_is_prepared_loaded_and_compiled(site: Path) -> None:
    prepared = cli(site, "prepare", "shop", "--data-dir", "data", "--valid-share", "0.25")
    assert prepared.returncode == 0, prepared.stderr
    assert "package broken: its recipes 'no_such_module.recipes' are left out (ModuleNotFoundError" in prepared.stderr
    compiled = run(site, COMPILED)
    assert compiled.returncode == 0, compiled.stderr


def test_an_operator_that_cannot_be_served_is_refused_before_anything_is_trained(site: Path) -> None:
    file = site / "shop/operators.py"
    file.write_text(file.read_text().replace("def lower(", "def unused("))
    done = cli(site, "run", "shop", "--data-dir", "data", "--valid-share", "0.25")
    assert done.returncode == 1
    assert (
        "operator Cents (columns ['price']) has no compiled form. Replace it, give it a method `lower`" in done.stderr
    )
    assert {path.name for path in (site / "work/shop").iterdir()} == {"prepared"}


def test_an_operator_that_no_package_names_is_refused_before_anything_is_fitted(site: Path) -> None:
    file = site / "shop-1.0.dist-info/entry_points.txt"
    file.write_text(file.read_text().partition("[rankline.operators]")[0])
    done = cli(site, "prepare", "shop", "--data-dir", "data", "--valid-share", "0.25")
    assert done.returncode == 1
    assert (
        "a saved workflow with shop.operators.Cents could not be loaded. Name the class in the entry-point group "
        in done.stderr
    )
    assert done.stderr.rstrip().endswith('rankline.operators of an installed package: cents = "shop.operators:Cents".')


def test_the_package_of_the_document_is_the_one_that_is_tried() -> None:
    document = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shown = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    assert shown == [FILES[f"shop/{name}.py"].lstrip() for name in ("recipes", "operators", "metrics")]
    (project,) = re.findall(r"```toml\n(.*?)```", document, re.DOTALL)
    found = configparser.ConfigParser()
    found.read_string(FILES["shop-1.0.dist-info/entry_points.txt"])
    for group in found.sections():
        names = found[group]
        lines = [f'[project.entry-points."{group}"]', *(f'{name} = "{value}"' for name, value in names.items())]
        assert "\n".join(lines) in project


def test_data_that_nothing_generates_must_be_given(site: Path) -> None:
    done = cli(site, "prepare", "shop")
    assert done.returncode == 1
    assert "there is no generator of sales. Give --data-dir with its raw files." in done.stderr
    assert "--rows: for generated rows only" in cli(site, "prepare", "shop", "--data-dir", "data", "--rows", "9").stderr


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("shop", "no Recipe found"),
        ("shop.copies", r"the names \['movielens'\] are taken"),
        ("shop.recipes:NONE", "AttributeError"),
    ],
)
def test_an_entry_point_that_brings_no_new_recipe_is_named_and_costs_no_other(
    site: Path, value: str, reason: str
) -> None:
    (site / "shop/copies.py").write_text("from rankline.recipes.movielens import MLP\n", encoding="utf-8")
    (site / "broken-2.0.dist-info/entry_points.txt").write_text(
        f"[rankline.recipes]\nother = {value}\n", encoding="utf-8"
    )
    code = "from rankline.recipes import available; found = available(); print(*found.recipes); print(*found.problems)"
    names, problems = run(site, code).stdout.splitlines()
    assert {"movielens", "shop"} <= set(names.split())
    assert problems.startswith(f"package broken: its recipes {value!r} are left out (")
    assert re.search(reason, problems)
