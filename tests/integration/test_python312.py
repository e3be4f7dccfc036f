"""The backends under the Python of Triton's images, with the packages of the Dockerfile: see `tests.container_stack`.

The models were trained and exported by the Python and the TensorFlow of this process.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import pytest

from serving.backends.offline import offline_model
from tests.container_stack import Exported, Network, Service
from workflows.upstream import nvt, quiet_nvtabular

pytest_plugins = ["tests.container_fixtures"]

ASK = """
import json, sys
from pathlib import Path
from serving.client import Client
from workflows.prepared import PreparedData

prepared = PreparedData.load(Path(sys.argv[1]))
with Client("triton:8001", "movielens") as client:
    print(json.dumps(client.predict(prepared.heldout().select(list(prepared.inputs))).tolist()))
"""


def served_scores(network: Network, exported: Exported) -> list[float]:
    scores: list[float] = json.loads(network.call(sys.executable, "-c", ASK, str(exported.prepared.path)))
    return scores


@pytest.fixture(scope="module")
def offline_scores(exported: Exported) -> Any:
    """Of the same rows, by NVTabular and the TensorFlow that trained the model."""
    prepared, trained = exported.prepared, exported.trained
    with quiet_nvtabular():
        workflow = prepared.workflow().remove_inputs([prepared.spec.label.name])
        rows = prepared.heldout().select(list(prepared.inputs)).to_pandas()
        frame = workflow.transform(nvt.Dataset(rows)).to_ddf().compute()
    return offline_model(trained.backend, trained.model_path).score_offline(frame)


def test_it_is_what_the_images_have(triton: Service, network: Network) -> None:
    script = """if True:
        import sys, importlib.util, tensorflow
        print(sys.version_info[:2] == (3, 12), [int(n) for n in tensorflow.__version__.split(".")[:2]] >= [2, 17])
        names = ("nvtabular", "merlin", "pandas", "torch", "pytriton")
        print([name for name in names if importlib.util.find_spec(name)])
    """
    assert network.run(triton, ["python3", "-c", script]).stdout.splitlines() == ["True True", "[]"]


def test_served_scores_are_the_offline_ones(
    triton: Service, network: Network, exported: Exported, offline_scores: Any
) -> None:
    served = served_scores(network, exported)
    assert np.std(offline_scores) > 0.01
    np.testing.assert_allclose(served, offline_scores, atol=1e-6)


def test_a_version_with_the_engine_onnx_is_taken_over(
    triton: Service, network: Network, exported: Exported, offline_scores: Any
) -> None:
    """The server has the repository read-only, and looks for new versions."""
    exported.export("onnx")
    deadline = time.monotonic() + 60
    while "version 2 answers" not in network.log(triton):
        assert time.monotonic() < deadline, network.log(triton)
        time.sleep(0.1)
    np.testing.assert_allclose(served_scores(network, exported), offline_scores, atol=1e-5)
