"""Prepared ratings, and one store of runs for all files."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported: its C++ start-up notices
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before PyTorch is: its threads would spin on busy machines

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankline.workflows.schema.feature_spec import FeatureSpec
from tests.factories.training.ratings import make_prepared, make_rows, make_spec
from tests.harness.process.frameworks import policy

__all__ = ["make_prepared", "make_spec"]  # which tests of other folders import from here


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_prepared(tmp_path_factory.mktemp("data") / "prepared")


@pytest.fixture(scope="session")
def spec() -> FeatureSpec:
    return make_spec()


@pytest.fixture
def rows() -> Any:
    return make_rows


@pytest.fixture
def new_prepared() -> Any:
    return make_prepared


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs are tracked, those of each file in an experiment of its own: making a store takes seconds."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(params=["float16", "bfloat16"])
def half(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a half precision; layers have a mixed policy with it."""
    with policy(f"mixed_{request.param}"):
        yield request.param
