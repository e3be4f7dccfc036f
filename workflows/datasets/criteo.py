"""Criteo: clicks on advertisements, 13 counts and 26 categories for each.

Missing counts are 0 and negative ones too, then come log(1 + x) and standardising; categories are encoded by their
vocabulary.
"""

from typing import TYPE_CHECKING

from workflows.datasets.base import Dataset
from workflows.datasets.criteo_files import CATEGORIES, LABEL, NUMBERS, read_criteo
from workflows.datasets.criteo_generator import generate_criteo
from workflows.datasets.raw import RawData
from workflows.encodings import RowsConfig
from workflows.heads import Head
from workflows.prepare_config import PrepareConfig

if TYPE_CHECKING:
    from workflows.upstream import nvt


def criteo_graph(_raw: RawData, config: PrepareConfig, _rows: RowsConfig) -> "nvt.Workflow":
    from workflows.operators import Categorify, GreaterThan, HashedCategorify, HexToInt
    from workflows.upstream import nvt, ops, quiet_nvtabular

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
