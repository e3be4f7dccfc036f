"""Holdout of training rows that selects the number of epochs, so that validation metrics stay unbiased.

A model trains on the other training rows to find the best epoch; `rankline.training.run.train` then trains another one
on all of them for as many epochs (Hastie et al. 2009, "The Elements of Statistical Learning", section 7.2, on selecting
and assessing models).
"""

from dataclasses import replace

from rankline.training.run.loop import INNER
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.feature_spec import FeatureSpec, Part

SHARE = 0.2


def inner_spec(spec: FeatureSpec, data: PreparedData) -> FeatureSpec:
    """Return a spec with two splits: "inner" is the holdout, and "train" has the other training rows.

    If the data was split by time, the holdout consists of the latest training rows, just as the validation rows are the
    latest of all rows. Otherwise it is the end of each row group, so the order of rows across files does not matter.
    """
    by_time = data.manifest.details.get("config", {}).get("split") == "time"
    source = spec.source("train")
    cuts = {"train": (0.0, 1 - SHARE), INNER: (1 - SHARE, 1.0)}
    parts = {split: Part(begin=begin, end=end, of_each_group=not by_time) for split, (begin, end) in cuts.items()}
    return replace(spec, sources={split: replace(source, part=part) for split, part in parts.items()})
