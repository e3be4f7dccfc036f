"""The ids that NVTabular's `Categorify` reserves; the vocabulary follows them by frequency."""

PADDING_ID = 0
NULL_ID = 1
FIRST_UNSEEN_ID = 2  # the only one, unless unseen values are dealt out over hash buckets
