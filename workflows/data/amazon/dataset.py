"""The Amazon reviews dataset: each user's reviewed items in chronological order, and item attributes.

As in NVIDIA's SIM for TensorFlow 2, an item is represented by its id and category, and a history is the latest items
before it. Items and histories share their vocabularies.
"""

from typing import TYPE_CHECKING

from rankline.workflows.data.amazon.generator import generate_amazon
from rankline.workflows.data.amazon.reader import CATEGORY, ITEM_ID, NO_CATEGORY, USER_ID, read_amazon
from rankline.workflows.preprocess import SequenceConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.dataset import Dataset, SequenceColumns
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.schema.feature_spec import HISTORY_SUFFIX, TARGET_SUFFIX
from rankline.workflows.schema.targets import Head

if TYPE_CHECKING:
    from rankline.workflows.nvt.compat import nvt

_HISTORY, _LABEL = "history", "label"
_TARGET_ITEM, _HISTORY_ITEMS = ITEM_ID + TARGET_SUFFIX, ITEM_ID + HISTORY_SUFFIX


def amazon_graph(raw: RawData, config: PrepareConfig, sequence: SequenceConfig) -> "nvt.Workflow":
    """Build the workflow that encodes user, item and history. The category, if used, is each item's last feature."""
    from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
    from rankline.workflows.nvt.operators import ItemAttributes, NullToEmptyList, SharedCategorify

    assert raw.catalog is not None  # the reader always sets it
    attributes = {"none": [], "category": [CATEGORY], "all": raw.catalog.column_names[1:]}[sequence.attributes]
    ids = [f"{name}_id" for name in attributes]
    with quiet_nvtabular():
        item = [ITEM_ID] >> ops.Rename(name=_TARGET_ITEM)
        latest = [_HISTORY] >> NullToEmptyList() >> ops.ListSlice(-sequence.max_history)
        history = latest >> ops.Rename(name=_HISTORY_ITEMS)
        encoded = item + history + [USER_ID] >> SharedCategorify(
            {_HISTORY_ITEMS: _TARGET_ITEM},
            freq_threshold=config.frequency_threshold,
            num_buckets=max(1, config.hash_buckets),
        )
        if attributes:
            table = raw.catalog.select([ITEM_ID, *attributes]).rename_columns([ITEM_ID, *ids]).to_pandas()
            known = item + history >> ItemAttributes(table, ITEM_ID, dict.fromkeys(ids, NO_CATEGORY))
            encoded = encoded + (known >> SharedCategorify({id + HISTORY_SUFFIX: id + TARGET_SUFFIX for id in ids}))
        return nvt.Workflow(encoded)


AMAZON = Dataset(
    name="amazon",
    read=read_amazon,
    generate=generate_amazon,
    inputs=(USER_ID, ITEM_ID, _HISTORY),
    heads=(Head(_LABEL),),
    group_by=USER_ID,
    item=ITEM_ID,
    sequence=SequenceColumns(user=USER_ID, item=ITEM_ID, history=_HISTORY),
    graph=amazon_graph,
)
