"""Arguments and options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

from rankline.recipes import RECIPES

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="  \n".join(f"{r.name}: {r.summary}" for r in RECIPES.values()))
]
WorkDir = Annotated[Path, typer.Option("--work-dir", help="Prepared data, models and MLflow's store.")]
Prebatch = Annotated[int, typer.Option("--prebatch", min=1, help="Rows per TFRecord; more are faster to read.")]
