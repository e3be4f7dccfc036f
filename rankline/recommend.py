"""The best items for a user, scored by the server."""

from typing import TYPE_CHECKING, Any

import numpy as np

from workflows.errors import ConfigError

if TYPE_CHECKING:
    from serving.client import Client
    from workflows.prepared import PreparedData


def best_items(client: "Client", prepared: "PreparedData", user: int, top: int) -> list[dict[str, Any]]:
    """Score the catalogue and keep the best.

    Args:
        client: of the ensemble.
        prepared: holds the catalogue and says which column is the user and which the item.
        user: any id; one that training did not see is scored as unseen.
        top: how many.

    Returns:
        Catalogue rows with a `score`, best first.

    Raises:
        ConfigError: the ensemble asks for more than user and item.
    """
    user_column, item_column, catalog = prepared.group_by, prepared.item, prepared.catalog()
    if (
        user_column is None
        or item_column is None
        or catalog is None
        or set(prepared.inputs) != {user_column, item_column}
    ):
        raise ConfigError(f"this ensemble takes {list(prepared.inputs)}; recommend knows user and item. Use predict.")
    items = catalog[item_column].to_numpy()
    scores = client.predict({user_column: np.full(len(items), user, dtype=np.int64), item_column: items})
    best = np.argsort(-scores, kind="stable")[:top]
    return [{**row, "score": float(scores[i])} for i, row in zip(best, catalog.take(best).to_pylist(), strict=True)]
