"""Latency of a row with `model: lightgbm`, against a model that returns its input, on one server.

One forest uses the recipe movielens with generated ratings, and another uses a generated click log with the recipe of
`rankline init`. The log has 20 columns, half of them text, which take longer to encode. The forests are exported as one
step (the default) or two. The same client calls all models in turns, with one request in flight.
"""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.harness.fixtures import prepare_rows
from bench.harness.report import Turn, median_ratio, medians, p50_ms, take_turns
from bench.harness.synthetic_rows import write_click_log
from rankline.recipes import recipe_named
from rankline.recipes.first_recipe import first_recipe
from rankline.recipes.recipe_file import read_recipe
from rankline.recipes.workspace import Workspace
from rankline.serving.client import Client
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.exporter import export_ensemble
from rankline.serving.loadtest.identity import BACKENDS, NAME, write_identity
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.training.config.train import TrainConfig
from rankline.training.models.lightgbm import LightGBMConfig
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.workflows.preprocess.prepare import prepare
from rankline.workflows.preprocess.prepared_data import PreparedData

ROWS = 100_000
CALLS, WARMUP_CALLS = 2_000, 200
IDENTITY = "identity"
_SIDES = {
    "lightgbm_p50_over_identity": "lightgbm",
    "lightgbm_two_steps_p50_over_identity": "lightgbm, two steps",
    "lightgbm_click_log_p50_over_identity": "lightgbm, click log",
}
"""Mapping from ratio to side."""


def measure(
    directory: Path, repeats: int, num_rows: int = ROWS
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    ratings = Workspace(recipe="movielens", root=directory, repository=directory / "unused")
    movielens, clicks = prepare_rows(ratings, recipe_named("movielens"), num_rows), _click_log(directory, num_rows)
    data = dict(zip(_SIDES.values(), (movielens, movielens, clicks), strict=True))
    for number, (side, prepared) in enumerate(data.items()):
        tracking = TrackingConfig(directory=directory, experiment="forest")
        trained = train(prepared, directory / "forest", TrainConfig(model=LightGBMConfig()), tracking=tracking)
        config = ExportConfig(fused="two steps" not in side)
        export_ensemble(prepared, trained, directory / side, config, name=f"forest_{number}")
    write_identity(directory / IDENTITY)
    served = ServerConfig(repositories=tuple(directory / side for side in (*data, IDENTITY)), backends=(BACKENDS,))
    asked = {
        side: (f"forest_{number}", prepared.heldout().select(list(prepared.inputs)).slice(0, 1))
        for number, (side, prepared) in enumerate(data.items())
    }
    asked[IDENTITY] = (NAME, pa.table({"x": np.zeros(1, np.int64)}))
    with EmbeddedServer(served) as server, ExitStack() as stack:
        sides: dict[str, Turn] = {}
        for side, (name, row) in asked.items():
            client = stack.enter_context(Client(server.endpoints.grpc, name))
            sides[side] = partial(p50_ms, partial(client.infer, client.prepare(row)), CALLS, WARMUP_CALLS)
        latencies = take_turns(sides, repeats)
    ratios = {key: median_ratio(latencies, side, IDENTITY) for key, side in _SIDES.items()}
    return medians(latencies, "p50_ms@1"), ratios


def _click_log(directory: Path, num_rows: int) -> PreparedData:
    write_click_log(directory / "clicks.csv", num_rows)
    path = directory / "rankline.yaml"
    path.write_text(first_recipe([str(directory / "clicks.csv")], [], directory).text, encoding="utf-8")
    recipe = read_recipe(path)
    raw = recipe.dataset.read(directory)
    return prepare(recipe.dataset, raw, directory / "clicks", recipe.prepare, recipe.encoding, source="generated")
