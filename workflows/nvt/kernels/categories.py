"""Ids that NVTabular's `Categorify` reserves, besides 0 for padding. The vocabulary follows them, by frequency."""

NULL_ID = 1
MOST_BUCKETS = 1 << 26
"""Maximum number of ids for unseen values: an export contains a table of them for each column."""
FIRST_UNSEEN_ID = 2  # the only one, unless unseen values are hashed to several buckets
