"""Collaborative filtering with the package `implicit`, in its own environment: `uv run --with implicit … FOLDER`.

The folder contains `task.json`, with the sides to fit, and `train.npz`, with the chosen items of each user. Each side
writes `SIDE.npy`, the scores of all items for all users, float32 (users, items). Imports nothing from Rankline.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from implicit.als import AlternatingLeastSquares  # type: ignore[import-not-found]
from implicit.nearest_neighbours import (  # type: ignore[import-not-found]
    BM25Recommender,
    CosineRecommender,
    TFIDFRecommender,
)
from scipy.sparse import csr_matrix

_NEIGHBOURS = {"cosine": CosineRecommender, "tfidf": TFIDFRecommender, "bm25": BM25Recommender}


def main(folder: Path) -> None:
    with np.load(folder / "train.npz") as held:
        shape = tuple(int(size) for size in held["shape"])
        chosen = csr_matrix((np.ones(len(held["users"]), np.float32), (held["users"], held["items"])), shape=shape)
    for side, options in json.loads((folder / "task.json").read_text()).items():
        np.save(folder / f"{side}.npy", scores(chosen, **options).astype(np.float32))


def scores(chosen: Any, *, kind: str, **options: Any) -> Any:
    if kind == "als":
        model = AlternatingLeastSquares(random_state=0, use_gpu=False, **options)
        model.fit(chosen, show_progress=False)
        return model.user_factors @ model.item_factors.T
    model = _NEIGHBOURS[kind](**options)
    model.fit(chosen, show_progress=False)
    return (chosen @ model.similarity).toarray()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
