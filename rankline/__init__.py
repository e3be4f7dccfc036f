"""Turn raw rows into served scores, and measure the result, from the command line or from Python::

    data = rankline.Dataset(frame, label="clicked", name="churn")
    rankline.prepare(data)
    rankline.train(data, epochs=3)
    with rankline.serve(rankline.export(data)) as server, rankline.Client(server.grpc, "churn") as client:
        scored = rankline.predict(client, frame)

Heavy modules are imported on first use.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rankline.workflows.core.old_names import install

if TYPE_CHECKING:
    from rankline.api.verbs import Dataset, export, load_recipe, predict, prepare, serve, train
    from rankline.serving.client import AsyncClient, Client
    from rankline.workflows.core.errors import RanklineError

__all__ = [
    "AsyncClient", "Client", "Dataset", "RanklineError", "export", "load_recipe", "predict", "prepare", "serve",
    "train",
]  # fmt: skip
install()
if "nvtabular" in sys.modules:  # Dask otherwise turns lists into strings
    import_module("rankline.workflows.nvt.dask_options")
_ELSEWHERE = {
    "AsyncClient": "rankline.serving.client",
    "Client": "rankline.serving.client",
    "RanklineError": "rankline.workflows.core.errors",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rankline' has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE.get(name, "rankline.api.verbs")), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
