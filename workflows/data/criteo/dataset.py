"""The Criteo dataset of ad clicks, with 13 counts and 26 categories per row.

Missing and negative counts become 0, and counts are then transformed by log(1 + x) and standardized. Categories are
encoded by vocabularies.
"""

from typing import TYPE_CHECKING

from rankline.workflows.data.criteo.generator import generate_criteo
from rankline.workflows.data.criteo.reader import CATEGORIES, LABEL, NUMBERS, read_criteo
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.dataset import Dataset
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.schema.targets import Head

if TYPE_CHECKING:
    from rankline.workflows.nvt.compat import nvt


def criteo_graph(_raw: RawData, config: PrepareConfig, _rows: RowsConfig) -> "nvt.Workflow":
    from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
    from rankline.workflows.nvt.operators import Categorify, GreaterThan, HashedCategorify, HexToInt

    with quiet_nvtabular():
        counts = list(NUMBERS) >> ops.FillMissing(0) >> ops.Clip(min_value=0) >> ops.LogOp()
        numbers = counts >> ops.Normalize(out_dtype="float32")
        if config.hash_buckets:
            encode = HashedCategorify(freq_threshold=config.frequency_threshold, num_buckets=config.hash_buckets)
        else:
            encode = Categorify(freq_threshold=config.frequency_threshold)
        ids = list(CATEGORIES) >> HexToInt() >> encode
        label = [LABEL] >> GreaterThan(0)
        return nvt.Workflow(numbers + ids + label)


CRITEO = Dataset(
    name="criteo",
    read=read_criteo,
    generate=generate_criteo,
    graph=criteo_graph,
    inputs=(*NUMBERS, *CATEGORIES),
    heads=(Head(LABEL),),
)
