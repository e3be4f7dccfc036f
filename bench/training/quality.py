"""quality: model quality over several seeds, against standard peers on the same rows.

There are two questions, each with its own recipe and split. *Would the user like it*, for rated rows: AUC, logloss and
GAUC on the recipe's own split, next to a logistic regression with a bias per user and item. *What comes next*: rank all
items that a user has not rated in training, with Recall@20 and NDCG@20 of the movies that the user later rated and
liked (a label of 1). Here each user's latest fifth validates, because a global split by time would leave only 28 users
of `ml-latest-small` with rows on both sides. The peers are item-kNN and ALS from the package `implicit`, trained on the
liked rows of the training part. All sides rank the same candidates.

Hyperparameters of the peers are tuned like Rankline's, on an inner part of the training rows (each user's latest
fifth), and then fitted to all training rows.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy.sparse import csr_matrix, hstack
from sklearn.linear_model import LogisticRegression

from bench.harness.report import Report, scratch_directory
from bench.peers.processes import output_of, python_with
from rankline.api import pipeline
from rankline.api.data_source import SourceConfig
from rankline.recipes import Recipe, recipe_named
from rankline.recipes.workspace import Workspace
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.exporter import export_ensemble
from rankline.serving.server.in_process import open_ensemble
from rankline.terminal.console import Stages
from rankline.training.distributed.communicator import Array
from rankline.training.evaluation import quality
from rankline.training.evaluation.ranking import Ranking
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.dataset import Dataset
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.preprocess.splits import random_split, time_split

LIKED, NEXT = "movielens-history", "movielens-next"
"""Default recipe for each question."""
FIRST = 20
IMPLICIT = "implicit==0.7.3"
SHARE = 0.2
_POSITION = "share of the user's rows before"
_SCRIPT = Path(__file__).parents[1] / "peers" / "collaborative.py"

Options = Mapping[str, Any]
PEERS: Mapping[str, Sequence[Options]] = {
    "als": [
        {"kind": "als", "factors": factors, "regularization": regularization, "alpha": alpha}
        for factors in (32, 64, 128)
        for regularization, alpha in ((0.01, 1), (1, 1), (10, 10), (50, 10))
    ],
    "item-knn": [
        *({"kind": kind, "K": neighbours} for kind in ("cosine", "tfidf") for neighbours in (20, 100, 500)),
        *({"kind": "bm25", "K": neighbours, "B": b} for neighbours in (20, 100, 500) for b in (0.1, 0.5)),
    ],
}
"""Mapping from peer to its hyperparameter grid."""
_BIAS_STRENGTHS = (0.03, 0.1, 0.3, 1.0)


def run(
    repeats: int,
    *,
    recipe: str | None = None,
    data: Path | None = None,
    num_rows: int = 100_000,
    peers: Mapping[str, Sequence[Options]] = PEERS,
    train: Options | None = None,
) -> Report:
    liked, following = (_recipe(recipe or usual, train or {}) for usual in (LIKED, NEXT))
    source = SourceConfig(data_dir=data) if data else SourceConfig(rows=num_rows)
    with scratch_directory() as directory:
        results = _rated(liked, source, directory / "rated", repeats)
        ranked = _ranked(following, source, directory / "ranked", repeats, peers)
    results |= {f"{side}, ranking": figures for side, figures in ranked.items()}
    recall, ndcg = f"recall_at_{FIRST}", f"ndcg_at_{FIRST}"
    ratios = {
        f"{name}_vs_best_peer": ranked[following.name][figure] / max(ranked[peer][figure] for peer in peers)
        for name, figure in (("recall", recall), ("ndcg", ndcg))
    }
    return Report(name="quality", results=results, ratios=ratios)


def _recipe(name: str, choices: Options) -> Recipe:
    recipe = recipe_named(name)
    dataset = recipe.dataset
    if None in (dataset.group_by, dataset.item, dataset.time) or not isinstance(recipe.encoding, RowsConfig):
        raise ConfigError(f"recipe {name!r} does not have rows of a user, an item and a time. Use {LIKED}.")
    return replace(recipe, train=recipe.train.with_choices(**choices))


# --- Would the user like it


def _rated(recipe: Recipe, source: SourceConfig, directory: Path, num_seeds: int) -> dict[str, dict[str, float]]:
    """Return the metrics of each side on the recipe's split, as means and deviations over the seeds for Rankline."""
    workspace = Workspace(recipe=recipe.name, root=directory, repository=directory / "repository")
    with Stages(["source", "prepare", "train"]) as stages:
        prepared, _ = pipeline.prepare(recipe, source, workspace, stages)
        _, per_seed = pipeline.train(recipe, prepared, workspace, stages, num_seeds)
    names = [name for name in per_seed[recipe.train.seed] if name.startswith("valid_")]
    ours: dict[str, float] = {}
    for name in names:
        values = [metrics[name] for metrics in per_seed.values()]
        ours |= _spread(name.removeprefix("valid_"), values)
    rows = _raw(recipe.dataset, source, workspace)
    return {recipe.name: ours, "bias of user and item": _biases(recipe, rows, prepared)}


def _biases(recipe: Recipe, rows: pa.Table, prepared: PreparedData) -> dict[str, float]:
    """Fit logistic regression on one-hot users and items; its strength is tuned on the last training rows."""
    dataset, encoding = recipe.dataset, recipe.encoding
    assert isinstance(encoding, RowsConfig)
    parts = _parts(rows, dataset, encoding)
    users, items = (_codes(rows[name]) for name in _columns(dataset))
    one_hot = hstack([_one_hot(users), _one_hot(items)], format="csr")
    labels = _labels(prepared, parts)
    train, valid = parts
    inner = int(len(train) * (1 - SHARE))

    def scored(learned: Array, asked: Array, strength: float) -> Array:
        model = LogisticRegression(C=strength, max_iter=500).fit(one_hot[learned], labels[learned])
        scores: Array = model.predict_proba(one_hot[asked])[:, 1]
        return scores

    def inner_loss(strength: float) -> float:
        return quality(labels[train[inner:]], scored(train[:inner], train[inner:], strength))["logloss"]

    scores = scored(train, valid, min(_BIAS_STRENGTHS, key=inner_loss))
    return quality(labels[valid], scores, users[valid])


# --- What comes next


@dataclass(frozen=True, kw_only=True)
class Interactions:
    users: Array  # one element per row
    items: Array
    liked: Array
    position: Array  # share of the user's rows that come before the row
    shape: tuple[int, int]  # numbers of users and items

    def at(self, rows: Array) -> "Interactions":
        return replace(
            self, users=self.users[rows], items=self.items[rows], liked=self.liked[rows], position=self.position[rows]
        )

    def chosen(self) -> Any:
        of = self.at(np.flatnonzero(self.liked))
        return csr_matrix((np.ones(len(of.users), np.float32), (of.users, of.items)), shape=self.shape)

    def measure(self, later: "Interactions", scores: Callable[[int], Array]) -> dict[str, float]:
        """Return the ranking metrics of `scores` over the items that each user has not rated yet.

        An item is relevant if the user likes it in `later`.
        """
        ranking = Ranking(FIRST)
        liked = later.at(np.flatnonzero(later.liked))
        rated, relevant = (_by_user(of.users, of.items) for of in (self, liked))
        for user in sorted(relevant.keys() & rated.keys()):
            is_relevant, is_candidate = np.zeros(self.shape[1], bool), np.ones(self.shape[1], bool)
            is_relevant[relevant[user]], is_candidate[rated[user]] = True, False
            ranking.add(scores(user)[is_candidate], is_relevant[is_candidate])
        return ranking.figures()


def _ranked(
    recipe: Recipe, source: SourceConfig, directory: Path, num_seeds: int, peers: Mapping[str, Sequence[Options]]
) -> dict[str, dict[str, float]]:
    assert isinstance(recipe.encoding, RowsConfig)
    dataset, encoding = by_position(recipe.dataset), replace(recipe.encoding, split="time", valid_share=SHARE)
    by_time = replace(recipe, dataset=dataset, encoding=encoding)
    user_column, item_column = _columns(dataset)
    workspace = Workspace(recipe=recipe.name, root=directory, repository=directory / "repository")
    with Stages(["source", "prepare", "train"]) as stages:
        prepared, _ = pipeline.prepare(by_time, source, workspace, stages)
        pipeline.train(by_time, prepared, workspace, stages, num_seeds)
    rows = _raw(dataset, source, workspace)
    parts = _parts(rows, dataset, encoding)
    users, items = (pc.unique(rows[name].combine_chunks()) for name in (user_column, item_column))
    if (catalog := prepared.catalog()) is not None:
        items = pc.unique(pa.concat_arrays([catalog[item_column].combine_chunks(), items]))
    all_rows = Interactions(
        users=pc.index_in(rows[user_column], users).to_numpy(),
        items=pc.index_in(rows[item_column], items).to_numpy(),
        liked=_labels(prepared, parts) > 0.5,
        position=rows[_POSITION].to_numpy(),
        shape=(len(users), len(items)),
    )
    train, valid = (all_rows.at(part) for part in parts)
    popularity = np.asarray(train.chosen().sum(axis=0)).ravel()
    figures = {"popularity": train.measure(valid, lambda _: popularity)}
    for peer, grid in peers.items():
        figures[peer] = _peer(train, valid, grid, directory / peer)
    models = [workspace.model, *(workspace.model_of_seed(recipe.train.seed + n) for n in range(1, num_seeds))]
    per_seed = [
        train.measure(valid, _ensemble_scores(prepared, model, directory / f"export-{number}", users, items))
        for number, model in enumerate(models)
    ]
    ours: dict[str, float] = {}
    for name in per_seed[0]:
        ours |= _spread(name, [of_seed[name] for of_seed in per_seed])
    return figures | {recipe.name: ours}


def _peer(train: Interactions, valid: Interactions, grid: Sequence[Options], directory: Path) -> dict[str, float]:
    """Return the metrics of the grid's best options on the inner part, fitted to all training rows."""
    inner, later = (train.at(part) for part in time_split(train.position, SHARE))
    found = _fitted(inner, grid, directory / "inner")
    of_each = [inner.measure(later, scores.__getitem__)[f"ndcg_at_{FIRST}"] for scores in found]
    best = grid[int(np.argmax(of_each))]
    (scores,) = _fitted(train, [best], directory / "all")
    return train.measure(valid, scores.__getitem__)


def _fitted(train: Interactions, grid: Sequence[Options], directory: Path) -> list[Array]:
    """Return the scores of all users and items for each entry of a grid, by `implicit` in a uv environment."""
    directory.mkdir(parents=True)
    chosen = train.chosen().tocoo()
    np.savez(directory / "train.npz", users=chosen.row, items=chosen.col, shape=np.array(train.shape))
    sides = {f"side-{number}": dict(options) for number, options in enumerate(grid)}
    (directory / "task.json").write_text(json.dumps(sides), encoding="utf-8")
    variables = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ""}
    try:
        output_of([*python_with(IMPLICIT), _SCRIPT, directory], variables=variables)
    except ConfigError as error:
        raise ConfigError(f"the peers of {IMPLICIT} cannot be measured: {error}") from None
    return [np.load(directory / f"{side}.npy", mmap_mode="r") for side in sides]


def _ensemble_scores(
    prepared: PreparedData, model: Path, repository: Path, users: pa.Array, items: pa.Array
) -> Callable[[int], Array]:
    """Return a function that scores all items for a user, with the exported ensemble in this process."""
    from rankline.workflows.schema.model_artifact import TrainedModel

    ensemble = export_ensemble(prepared, TrainedModel.load(model), repository, ExportConfig(), name="quality")
    client = open_ensemble(ensemble)

    def scores(user: int) -> Array:
        columns = {prepared.group_by: pa.repeat(users[user], len(items)), prepared.item: items}
        scored: Array = client.predict(pa.table(columns).select(list(prepared.inputs)))
        return scored

    return scores


# --- Rows


def by_position(dataset: Dataset) -> Dataset:
    """Return the dataset with a split by time within each user."""
    (user, _), time = _columns(dataset), str(dataset.time)

    def read(directory: Path) -> RawData:
        raw = dataset.read(directory)
        if not isinstance(raw.rows, pa.Table):
            raise ConfigError(f"the rows of {dataset.name} are a stream, which cannot be split per user.")
        codes = _codes(raw.rows[user])
        order = np.lexsort((raw.rows[time].to_numpy(), codes))
        num_rows = np.bincount(codes)
        first = np.cumsum(num_rows) - num_rows
        position = np.empty(len(codes))
        position[order] = (np.arange(len(codes)) - first[codes[order]] + 0.5) / num_rows[codes[order]]
        return replace(raw, rows=raw.rows.append_column(_POSITION, pa.array(position)))

    return replace(dataset, read=read, time=_POSITION)


def _raw(dataset: Dataset, source: SourceConfig, workspace: Workspace) -> pa.Table:
    from rankline.api.data_source import obtain

    rows = dataset.read(obtain(dataset, source, workspace.raw).directory).rows
    assert isinstance(rows, pa.Table)
    return rows


def _parts(rows: pa.Table, dataset: Dataset, encoding: RowsConfig) -> tuple[Array, Array]:
    """Return the indices of the raw rows for training and for validation, in the order of the prepared files."""
    if encoding.split == "time":
        return time_split(rows[str(dataset.time)].to_numpy(), encoding.valid_share)
    return random_split(len(rows), encoding.valid_share, encoding.split_seed)


def _labels(prepared: PreparedData, parts: tuple[Array, Array]) -> Array:
    labels = np.empty(sum(map(len, parts)), np.float32)
    for split, part in zip(("train", "valid"), parts, strict=True):
        files = [prepared.path / name for name in prepared.spec.source(split).files]
        labels[part] = pq.read_table(files, columns=[prepared.spec.label.name])[0].to_numpy()
    return labels


def _columns(dataset: Dataset) -> tuple[str, str]:
    """Return the names of the user and item columns, which `_recipe` has checked."""
    return str(dataset.group_by), str(dataset.item)


def _codes(column: pa.ChunkedArray) -> Array:
    codes: Array = column.combine_chunks().dictionary_encode().indices.to_numpy()
    return codes


def _one_hot(codes: Array) -> Any:
    return csr_matrix((np.ones(len(codes)), (np.arange(len(codes)), codes)))


def _by_user(users: Array, items: Array) -> dict[int, Array]:
    order = np.argsort(users, kind="stable")
    distinct, begins = np.unique(users[order], return_index=True)
    return dict(zip(distinct.tolist(), np.split(items[order], begins[1:]), strict=True))


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    if name == "users":
        return {name: values[0]}
    deviation = {f"{name}_std": statistics.stdev(values)} if len(values) > 1 else {}
    return {name: statistics.fmean(values)} | deviation
