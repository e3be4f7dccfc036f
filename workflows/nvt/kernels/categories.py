"""The ids that NVTabular's `Categorify` reserves, besides 0 for padding; the vocabulary follows them by frequency."""

NULL_ID = 1
MOST_BUCKETS = 1 << 26
"""Ids for unseen values: an export holds a table of them for each column."""
FIRST_UNSEEN_ID = 2  # the only one, unless unseen values are dealt out over hash buckets
