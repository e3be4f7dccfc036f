"""Encodings that convert raw rows to encoded splits. Each kind of data has its own encoding, module and config.

tabular     each raw row becomes one encoded row
sequences   raw rows are interactions; an encoded row has an item to score and the items that the user chose before
"""

from rankline.workflows.preprocess.config import RowsConfig, SequenceConfig

EncodingConfig = RowsConfig | SequenceConfig
"""Options of an encoding; the class selects the encoding. Fast to import."""

__all__ = ["EncodingConfig", "RowsConfig", "SequenceConfig"]
