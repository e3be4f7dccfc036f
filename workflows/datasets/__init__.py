"""The datasets, one file each. A new one is a file here and a line in DATASETS."""

from workflows.datasets.amazon import AMAZON
from workflows.datasets.base import Dataset
from workflows.datasets.criteo import CRITEO
from workflows.datasets.movielens import MOVIELENS

DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in (MOVIELENS, CRITEO, AMAZON)}

__all__ = ["DATASETS", "Dataset"]
