"""Encodings, which convert raw rows of one kind of data to encoded splits. Each has a module and a config.

tabular     each raw row becomes one encoded row
sequences   raw rows are interactions; an encoded row has an item to score and the items that the user chose before
"""

from rankline.workflows.preprocess.config import RowsConfig, SequenceConfig

EncodingConfig = RowsConfig | SequenceConfig
"""Options of an encoding; the class selects the encoding. Fast to import."""

__all__ = ["EncodingConfig", "RowsConfig", "SequenceConfig"]
