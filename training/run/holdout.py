"""Which training rows choose how long a run trains, so that the validation rows choose nothing and may be reported.

A model is trained on the others and the best epoch taken; `rankline.training.run.train` then trains another one on all
of them for as many epochs (Hastie et al. 2009, "The Elements of Statistical Learning", section 7.2, on choosing and
assessing).
"""

from dataclasses import replace

from rankline.training.run.loop import INNER
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.feature_spec import FeatureSpec, Part

SHARE = 0.2


def inner_spec(spec: FeatureSpec, data: PreparedData) -> FeatureSpec:
    """A spec whose split "train" lacks the rows that the split "inner" has, and which has no other.

    As the validation rows are the latest where the data was split by time, so are these. Otherwise they are the end of
    each row group: then it does not matter whether the files are in some order.
    """
    by_time = data.manifest.details.get("config", {}).get("split") == "time"
    source = spec.source("train")
    cuts = {"train": (0.0, 1 - SHARE), INNER: (1 - SHARE, 1.0)}
    parts = {split: Part(begin=begin, end=end, of_each_group=not by_time) for split, (begin, end) in cuts.items()}
    return replace(spec, sources={split: replace(source, part=part) for split, part in parts.items()})
