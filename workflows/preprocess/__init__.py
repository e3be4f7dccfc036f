"""How raw rows of one kind of data become encoded splits: a file for each kind, and its options beside it.

rows        each raw row is a row, with columns of its own
histories   raw rows are interactions; a row is an item to score, and the items that its user chose before
"""

from rankline.workflows.preprocess.sequences.config import SequenceConfig
from rankline.workflows.preprocess.tabular.config import RowsConfig

EncodingConfig = RowsConfig | SequenceConfig
"""The options of an encoding. Which class it is says which encoding; light to import."""

__all__ = ["EncodingConfig", "RowsConfig", "SequenceConfig"]
