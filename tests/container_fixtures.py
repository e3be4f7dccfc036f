"""A pytest plugin: the modules that name it in `pytest_plugins` share one Triton, run as `docker-compose.yml` says."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.container_stack import ROOT, Exported, Network, Service, allowed_files, compose, triton_service


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Version 1, of engine tensorflow."""
    from rankline.recipes import recipe_named
    from training.tracking import TrackingConfig
    from training.train import train
    from workflows.datasets.movielens_generator import generate_movielens
    from workflows.prepare import prepare

    path, recipe = tmp_path_factory.mktemp("stack"), recipe_named("movielens")
    generate_movielens(path / "ratings", num_rows=5_000, seed=5)
    raw = recipe.dataset.read(path / "ratings")
    prepared = prepare(recipe.dataset, raw, path / "work/movielens/prepared", recipe.prepare, source="a test")
    tracking = TrackingConfig(directory=path / "mlflow", experiment="stack")
    trained = train(prepared.path, path / "model", replace(recipe.train, epochs=1), tracking=tracking)
    (path / "repository").mkdir()
    made = Exported(prepared=prepared, trained=trained, work=path / "work", repository=path / "repository")
    made.export()
    return made


@pytest.fixture(scope="session")
def stack(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The compose file for the exported ensemble; its passwords are of this test."""
    return compose(
        POSTGRES_PASSWORD="p@ss/word", GRAFANA_PASSWORD="unused",
        RANKLINE_REPOSITORY=str(exported.repository), RANKLINE_WORK=str(exported.work),
    )  # fmt: skip


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as a build of the images sees it."""
    target = tmp_path_factory.mktemp("context")
    for name in allowed_files():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    return target


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with Network(tmp_path_factory.mktemp("network")) as made:
        yield made


@pytest.fixture(scope="session")
def triton(stack: dict[str, Any], context: Path, network: Network) -> Service:
    """Triton with the ensemble, healthy."""
    service = triton_service(stack["services"]["triton"], context, {})
    network.start(service)
    return service
