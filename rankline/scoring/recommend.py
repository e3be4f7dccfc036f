"""Recommends items for a user."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankline.scoring.read_rows import text_columns, typed_row
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.formatting import did_you_mean
from rankline.workflows.preprocess.prepared_data import CATALOG, PreparedData

if TYPE_CHECKING:
    from rankline.serving.client import Client, ModelSchema


def best_items(
    client: "Client",
    prepared: PreparedData,
    user: int | str,
    top: int,
    *,
    context: Mapping[str, Any] | None = None,
    with_known: bool = False,
    report: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Score the catalog for a user, and return the `top` highest-scoring rows, each with its `score`, best first.

    If the model takes several candidates per row, a request holds the user, any history, and all candidates, split into
    several requests if there are more candidates than the server accepts at once.

    Args:
        user: a user that training did not see is scored as unseen, with an empty history.
        context: values of columns other than user, item and history; other values come from the catalog.
        with_known: also score the items that the user has in the data.
        report: called with a remark about the user, if there is one.
    """
    user_column, item_column = user_and_item(prepared)
    history_column, catalog = prepared.spec.metadata.history, prepared.catalog()
    assert catalog is not None
    user = typed_user(user, client.schema, user_column)
    shared = context or {}
    of_items = check_context(prepared, client.schema, shared)
    known = _known(prepared, user, report or (lambda _: None))
    if not with_known and known is not None:
        catalog = catalog.filter(pc.invert(pc.is_in(catalog[item_column], known.cast(catalog[item_column].type))))
    if not len(catalog):
        return []
    columns = {name: catalog[name] for name in (item_column, *of_items)}
    row = {user_column: user, **shared}
    if history_column is not None:
        scores = client.rank({**row, history_column: _latest(client, known).to_pylist()}, columns)
    elif item_column in client.schema.candidates:
        scores = client.rank(row, columns)
    else:
        scores = client.predict({**{name: pa.array([value] * len(catalog)) for name, value in row.items()}, **columns})
    best = np.argsort(-scores, kind="stable")[:top]
    return [{**row, "score": float(scores[i])} for i, row in zip(best, catalog.take(best).to_pylist(), strict=True)]


def user_and_item(prepared: PreparedData) -> tuple[str, str]:
    user_column, item_column = prepared.group_by, prepared.item
    has_catalog = CATALOG in prepared.manifest.files
    if user_column is None or item_column is None or not has_catalog:
        found = {"user column": user_column, "item column": item_column, "catalog of items": has_catalog}
        raise ConfigError(
            f"the prepared data has no {' and no '.join(name for name, value in found.items() if not value)}, which "
            "`recommend` requires. Use `predict` with one row per item instead."
        )
    return user_column, item_column


def context_of(texts: Sequence[str], schema: "ModelSchema") -> dict[str, Any]:
    given: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--context is {text!r}, expected a column and its value, such as --context country=DE")
        given[name] = value
    row: dict[str, Any] = typed_row(given, text_columns(schema)).to_pylist()[0] if given else {}
    return row


def check_context(prepared: PreparedData, schema: "ModelSchema", context: Collection[str]) -> list[str]:
    """Check `context` against the model's inputs, and return the catalog columns to send with each item."""
    known = {prepared.group_by, prepared.item, prepared.spec.metadata.history}
    further = {column.name: column.is_required for column in schema.columns if column.name not in known}
    if unknown := sorted(set(context) - further.keys()):
        hint = did_you_mean(unknown, list(further))
        raise ConfigError(f"--context contains {unknown}, expected {list(further) or 'none'}.{hint}")
    in_catalog = set(prepared.catalog_columns())
    if prepared.spec.metadata.history is not None:
        in_catalog &= set(schema.candidates)  # other columns have one value for all candidates
    of_items = [name for name in further if name not in context and name in in_catalog]
    if lacking := [name for name, is_required in further.items() if is_required and name not in {*context, *of_items}]:
        example = " ".join(f"--context {name}=…" for name in lacking)
        raise ConfigError(f"this ensemble also requires {lacking}, which the catalog does not contain. Pass {example}")
    return of_items


def typed_user(user: int | str, schema: "ModelSchema", column: str) -> int | str:
    (values,) = (found.values for found in schema.columns if found.name == column)
    if values.numpy_dtype.hasobject:
        return str(user)
    try:
        return int(user)
    except ValueError:
        raise ConfigError(f"user is {user!r}, but this ensemble requires integer user IDs.") from None


def _known(prepared: PreparedData, user: int | str, report: Callable[[str], None]) -> pa.Array | None:
    """Return the items in a user's history (empty for an unknown user), or None if the data has no user histories."""
    histories = prepared.histories()
    if histories is None:
        return None
    users, items = histories.columns
    try:
        number = pc.index(users, pa.scalar(user, users.type)).as_py()
    except (pa.ArrowException, OverflowError):  # larger than any known id
        number = -1
    if number >= 0:
        return items[number].values
    report(f"user {user!r} is not in the data: these items are for a user without a history.")
    return pa.array([], items.type.value_type)


def _latest(client: "Client", history: pa.Array) -> pa.Array:
    """Return the most recent items of a history that fit into a request. The workflow may use even fewer."""
    limit = client.schema.max_list_length
    return history[-limit:] if limit else history
