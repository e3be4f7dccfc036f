"""The best items for a user, scored by the server."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from workflows.errors import ConfigError
from workflows.prepared import CATALOG, PreparedData

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from serving.client import Client, ModelSchema


def best_items(
    client: "Client",
    prepared: PreparedData,
    user: int | str,
    top: int,
    *,
    with_known: bool = False,
    report: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Score the catalogue and keep the best.

    Where rows have histories, one request has the user's and all candidates; more of them than the server takes at once
    make several.

    Args:
        client: of the ensemble.
        prepared: holds the catalogue and the histories, and says which column is the user and which the item.
        user: any id; one that training did not see is scored as unseen, with an empty history.
        top: how many.
        with_known: score the items of the user's history too; data without histories does so in any case.
        report: is given what is worth knowing about the user, if anything is.

    Returns:
        Catalogue rows with a `score`, best first.

    Raises:
        ConfigError: the ensemble asks for more than user, item and history, or its users are numbers and `user` is not.
    """
    user_column, item_column = user_and_item(prepared)
    history_column, catalog = prepared.spec.metadata.history, prepared.catalog()
    assert catalog is not None
    user = typed_user(user, client.schema, user_column)
    if history_column is None:
        items = catalog[item_column].to_numpy()
        scores = client.predict({user_column: np.full(len(items), user), item_column: items})
    else:
        history = _history(prepared, user, history_column, report or (lambda _: None))
        if not with_known:
            catalog = catalog.filter(pc.invert(pc.is_in(catalog[item_column], history.cast(catalog[item_column].type))))
        if not len(catalog):
            return []
        row = {user_column: user, history_column: _latest(client, history).to_pylist()}
        scores = client.rank(row, catalog[item_column])
    return _best(catalog, scores, top)


def user_and_item(prepared: PreparedData) -> tuple[str, str]:
    """The columns of users and of items; reads no rows, so that a verb can ask before it starts a server.

    Raises:
        ConfigError: rows have no user, no item or no catalogue of items, or more than these and a history.
    """
    user_column, item_column = prepared.group_by, prepared.item
    expected = {user_column, item_column, prepared.spec.metadata.history} - {None}
    has_catalog = CATALOG in prepared.manifest.files
    if user_column is None or item_column is None or not has_catalog or set(prepared.inputs) != expected:
        raise ConfigError(
            f"this ensemble takes {list(prepared.inputs)}; recommend needs a user and an item, and takes a history. "
            "Use predict."
        )
    return user_column, item_column


def typed_user(user: int | str, schema: "ModelSchema", column: str) -> int | str:
    """The user as the ensemble takes users.

    Raises:
        ConfigError: it takes numbers, and this is none.
    """
    (values,) = (found.values for found in schema.columns if found.name == column)
    if values.numpy_dtype.hasobject:
        return str(user)
    try:
        return int(user)
    except ValueError:
        raise ConfigError(f"user is {user!r}, but users of this ensemble are whole numbers.") from None


def _history(prepared: PreparedData, user: int | str, column: str, report: Callable[[str], None]) -> pa.Array:
    """All items of a user, the latest last; none of one who is not known."""
    histories = prepared.histories()
    assert histories is not None
    users = histories[prepared.group_by]
    try:
        number = pc.index(users, pa.scalar(user, users.type)).as_py()
    except (pa.ArrowException, OverflowError):  # larger than any that is known
        number = -1
    if number >= 0:
        return histories[column][number].values
    report(f"user {user!r} is not in the data: these are for a user without a history.")
    return pa.array([], histories[column].type.value_type)


def _latest(client: "Client", history: pa.Array) -> pa.Array:
    """What the server takes of a history; the workflow keeps fewer."""
    limit = client.schema.max_list_length
    return history[-limit:] if limit else history


def _best(catalog: pa.Table, scores: "NDArray[Any]", top: int) -> list[dict[str, Any]]:
    best = np.argsort(-scores, kind="stable")[:top]
    return [{**row, "score": float(scores[i])} for i, row in zip(best, catalog.take(best).to_pylist(), strict=True)]
