"""How high a model ranks the items that users choose after training, among all items of the catalog."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankline.training.distributed.communicator import Array
from rankline.training.evaluation.ranking import Ranking
from rankline.workflows.schema.targets import BINARY

if TYPE_CHECKING:
    from rankline.workflows.preprocess.prepared_data import PreparedData

FIRST = 20
RECALL, NDCG = f"recall_at_{FIRST}", f"ndcg_at_{FIRST}"
_MAX_SCORES = 2_000_000  # scored in seconds
_MIN_USERS = 10  # fewer say nothing


@dataclass(frozen=True, kw_only=True)
class RankedItems:
    """How well a model ranks items, compared with ranking them by popularity.

    Attributes:
        num_users: number of users in the sample.
        model: the metrics `RECALL` and `NDCG` if the items with the highest scores come first.
        popular: the same metrics if the items with the most training rows come first.
    """

    num_users: int
    model: Mapping[str, float]
    popular: Mapping[str, float]


def rank_items(
    prepared: "PreparedData", rows: pa.Table, labels: Array, predict: Callable[[pa.Table], Array]
) -> RankedItems | None:
    """Rank the catalog for a sample of users, without the items that each has among the training rows.

    An item is relevant if the user has a validation row with it whose label is 1.

    Args:
        rows: validation rows.
        labels: their labels, shape (N,).
        predict: scores raw rows.

    Returns:
        None unless rows are split by time and consist of a user and columns of the catalog, the model has one head,
        which is binary, no user, item or score is missing, and at least ten users have rows in both parts.
    """
    user_column, item_column, inputs = prepared.group_by, prepared.item, set(prepared.inputs)
    is_ranking = (
        prepared.split == "time"
        and [head.task for head in prepared.spec.heads] == [BINARY]
        and {user_column, item_column} <= inputs <= {user_column, *prepared.catalog_columns()}
    )
    histories, catalog = (prepared.histories(), prepared.catalog()) if is_ranking else (None, None)
    if histories is None or catalog is None or rows[user_column].null_count or rows[item_column].null_count:
        return None
    items = catalog[item_column].combine_chunks()
    later = _positions(rows[item_column], items)
    users = _positions(rows[user_column], histories[user_column])
    known = histories[item_column].combine_chunks()
    num_training_rows = np.bincount(_positions(known.values, items), minlength=len(items)) - np.bincount(
        later, minlength=len(items)
    )
    eligible = np.unique(users[labels > 0.5])
    eligible = eligible[known.value_lengths().to_numpy()[eligible] > np.bincount(users)[eligible]]
    if len(eligible) < _MIN_USERS:
        return None
    sample = np.random.default_rng(0).permutation(eligible)[: max(_MAX_SCORES // len(items), _MIN_USERS)]
    model, popular = Ranking(FIRST), Ranking(FIRST)
    for user in sample:
        own = users == user
        is_candidate, is_relevant = np.ones(len(items), bool), np.zeros(len(items), bool)
        is_candidate[np.setdiff1d(_positions(known[user].values, items), later[own])] = False
        is_relevant[later[own & (labels > 0.5)]] = True
        asked = catalog.filter(pa.array(is_candidate))
        user_values = pa.repeat(histories[user_column][user], len(asked))
        scores = predict(asked.append_column(user_column, user_values).select(prepared.inputs))
        if np.isnan(scores).any():
            return None
        for ranking, values in ((model, scores), (popular, num_training_rows[is_candidate])):
            ranking.add(values, is_relevant[is_candidate])
    return RankedItems(num_users=len(sample), model=model.figures(), popular=popular.figures())


def _positions(values: pa.Array | pa.ChunkedArray, known: pa.Array | pa.ChunkedArray) -> Array:
    """Return the position of each value in `known`, which contains them all."""
    found: Array = pc.index_in(values, known.cast(values.type)).to_numpy()
    return found
