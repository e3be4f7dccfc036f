"""The verb `prepare`."""

from rankline.cli.arguments import RecipeName, WorkDir
from rankline.cli.recipe_options import with_recipe_options
from rankline.display import say
from rankline.options import Overrides
from rankline.source import SourceConfig
from rankline.workspace import WORK_DIR
from workflows.dask_config import DaskConfig


@with_recipe_options(SourceConfig, DaskConfig, of_recipe=lambda recipe: (recipe.prepare, recipe.encoding))
def prepare_command(recipe: RecipeName, *, work_dir: WorkDir = WORK_DIR, overrides: Overrides) -> None:
    """Raw rows to encoded Parquet, a fitted NVTabular workflow and the feature spec.

    `rankline prepare RECIPE --help` has the options of a recipe, too.

    **Examples**

    rankline prepare movielens --data-dir ml-1m --split time

    rankline prepare movielens --rows 1000000 --frequency-threshold 5 --hash-buckets 100

    rankline prepare criteo-dlrm --data-dir criteo --dask local:8

    rankline prepare criteo-dlrm --data-dir /shared/criteo --work-dir /shared/work --dask tcp://scheduler:8786
    """
    from rankline import api

    prepared = api.prepare(recipe, work_dir=work_dir, **overrides.values)
    say(f"prepared data: {prepared.path}")
